"""Follows one request through the services, function by function: `python -m tools.walk`."""
