"""Continuous batching: sequences, KV blocks, and what the next step computes. Pure."""
