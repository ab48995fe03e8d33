"""The forward pass in torch operators: the oracle of the compiled kernels, and the path on GPUs."""
