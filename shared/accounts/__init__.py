"""Tenants and keys as gateways and routers know them."""
