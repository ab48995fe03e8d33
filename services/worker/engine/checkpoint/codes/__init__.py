"""Quantized matrices of checkpoints as codes with scales."""
