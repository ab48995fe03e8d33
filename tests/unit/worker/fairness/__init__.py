"""Shares of parties, and the floor of background work."""
