"""Kernels in Triton that replace operators of the plain path on GPUs."""
