"""Contracts of the engine port."""
