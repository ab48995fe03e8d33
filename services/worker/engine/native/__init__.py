"""Compiled kernels for CPUs: the C++ in `src/` runs a rank's forward pass in one call."""
