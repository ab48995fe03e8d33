"""Fixtures and helpers of the tests."""
