"""Decisions of the group leader: pure, no I/O, the time is an argument."""
