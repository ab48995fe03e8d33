"""Adapters on a rank: its share of their matrices, loading beside steps, and how torch computes with them."""
