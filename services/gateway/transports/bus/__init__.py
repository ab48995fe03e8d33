"""Whole answers by one request and one reply on the bus, in JSON."""
