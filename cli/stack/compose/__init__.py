"""Writes what a models file says as a Compose file beside `compose.yaml`."""
