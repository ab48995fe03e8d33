"""Ranks, KV moves and collectives for tests of the engine."""
