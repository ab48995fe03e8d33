"""Clocks of the ranks, and the recordings that they make for a profile."""
