"""Slow and plain forms of kernels, which tests compare these with; they serve no requests."""
