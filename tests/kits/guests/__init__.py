"""Guests that tests script, groups of sequences that generate on their own, and runs through the engine port."""
