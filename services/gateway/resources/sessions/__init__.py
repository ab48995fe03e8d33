"""Sessions as objects, and as files."""
