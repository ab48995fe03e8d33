"""Whole stacks in trouble: what may be lost there is time."""
