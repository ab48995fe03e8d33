"""Calls and their answers without any transport: runs, repeats, resumption, sessions' conditions."""
