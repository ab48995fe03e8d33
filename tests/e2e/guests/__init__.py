"""Stacks with groups in front of servers of others."""
