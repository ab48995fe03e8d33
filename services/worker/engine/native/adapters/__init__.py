"""Adapters (LoRA) in the compiled pass: where they add, how they are packed, and the slots that hold them."""
