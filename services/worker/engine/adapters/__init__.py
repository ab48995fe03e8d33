"""Adapters on a rank: its share of their matrices, loading beside steps, and the plain way to compute with them."""
