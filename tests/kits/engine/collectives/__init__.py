"""The checks of collectives in real processes."""
