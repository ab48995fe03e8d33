"""The layers of a decoder for the kernels: their packed weights, and what the kernels do not compute."""
