"""Routes about tokens of a text, which generate nothing."""
