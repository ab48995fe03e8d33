"""Guests that tests script, groups whose sequences generate on their own, and runs through the engine port."""
