"""Transports: each makes calls of what its clients send, and carries the answers."""
