"""Kits for adapters in a worker group."""
