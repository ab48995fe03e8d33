"""Counts what gateways and routers have leased of the limits of tenants and keys."""
