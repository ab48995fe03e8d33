"""Frames on their way to the reader of a generation: their order and size, and those without a reader."""
