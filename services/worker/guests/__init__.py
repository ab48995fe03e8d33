"""Engines of others as a worker group: what they promise, and what makes them an `Engine`."""
