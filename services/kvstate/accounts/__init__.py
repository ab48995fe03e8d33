"""Tenants, keys and prices: their store in a stream of the broker, the audit log, and the calls."""
