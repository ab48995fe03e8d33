"""Chooses the next token from logits."""
