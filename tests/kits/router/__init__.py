"""Routers for tests, and the callers and leaders around them."""
