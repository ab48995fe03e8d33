"""Helpers for tests of `ryz models`."""
