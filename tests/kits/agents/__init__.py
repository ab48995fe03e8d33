"""Coding agents as a gateway sees them: the shapes of their requests, turn by turn."""
