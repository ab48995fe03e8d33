"""Tests of the whole stack, started with the `ryz` command as a user would."""
