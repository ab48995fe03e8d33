"""Clients of `/v1/realtime`."""
