"""Adapters of random numbers, for measurements and tests that need some of a real model's shape."""
