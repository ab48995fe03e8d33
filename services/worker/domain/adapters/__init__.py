"""Adapters in the memory of an engine: which are there, who uses them, which come and go. Pure."""
