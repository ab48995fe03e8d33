"""Handlers of the calls that clients, other leaders and services make to a leader."""
