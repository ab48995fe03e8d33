"""Mixtures of experts for the kernels: structs, packed weights, and the ops of a layer."""
