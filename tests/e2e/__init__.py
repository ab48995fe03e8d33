"""Tests of the whole stack, started by the `ryz` command like a person would."""
