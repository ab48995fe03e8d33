"""Routers for tests, with callers and leaders."""
