"""Packed weights in files, which groups of one host map."""
