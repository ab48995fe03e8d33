"""Tokens of a text, which generate nothing."""
