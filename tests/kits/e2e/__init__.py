"""Whole stacks for the end-to-end tests."""
