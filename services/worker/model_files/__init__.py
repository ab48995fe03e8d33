"""A model as the leader knows it: what a directory or a GGUF file says, without the weights."""
