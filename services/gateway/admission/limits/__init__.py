"""Limits of tenants and keys, over leases that all gateways share."""
