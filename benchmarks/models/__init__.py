"""Model directories with random weights in a given shape."""
