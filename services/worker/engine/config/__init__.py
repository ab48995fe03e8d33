"""What a model computes, read from its config; imports no torch."""
