"""Heartbeats of the group: what the leader describes, and the process beside it that sends them."""
