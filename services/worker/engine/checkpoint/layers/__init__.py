"""Loads the parts of a layer: which slice of each tensor a rank has."""
