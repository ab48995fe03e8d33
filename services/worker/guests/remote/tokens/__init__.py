"""Tokens to texts and back, without a lost, doubled or wrong character."""
