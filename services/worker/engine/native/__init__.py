"""Compiled kernels for CPUs: a rank's forward pass as one call. `src/` is C++, the rest prepares it."""
