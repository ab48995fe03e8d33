"""Guests for tests."""
