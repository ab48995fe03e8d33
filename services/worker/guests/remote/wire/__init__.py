"""HTTP, events and the APIs that remote servers speak."""
