"""Shares of parties and of background work, in weighted tokens."""
