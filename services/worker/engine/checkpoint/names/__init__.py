"""Canonical names of a model's tensors, and where the files of a family have each."""
