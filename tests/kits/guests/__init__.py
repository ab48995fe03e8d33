"""Guests: engines of others that tests script."""
