"""Runs the benches of two commits in turns, and says which figures got worse beyond what noise explains."""
