"""Moves KV blocks between a rank's cache and Redis."""
