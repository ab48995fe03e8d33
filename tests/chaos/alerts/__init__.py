"""Alerts proven by faults."""
