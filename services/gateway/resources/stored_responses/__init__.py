"""Responses that run in the background or are stored, and the events that are kept of them."""
