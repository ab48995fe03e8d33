"""Guests that tests script, groups whose sequences generate on their own, runs through the engine port."""
