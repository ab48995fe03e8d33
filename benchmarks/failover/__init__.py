"""Streams while ranks and leaders are killed or frozen."""
