"""How far quantized weights move the distributions of the next token."""
