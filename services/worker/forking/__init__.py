"""Processes beside a leader that are forked from it, before it has threads: a fork copies one thread only."""
