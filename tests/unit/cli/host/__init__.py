"""Tests of what `ryz up` does to its host."""
