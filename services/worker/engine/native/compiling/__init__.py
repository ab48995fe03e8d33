"""How the kernels are compiled: a compiler that ends with its caller, and what is said meanwhile."""
