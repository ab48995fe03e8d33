"""`ryz bench adapters` and `ryz bench adapter-pool`."""
