"""Proxies that delay, cut and lose what passes between a service and a server."""
