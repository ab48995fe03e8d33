"""Tenants with limits, and the store that counts them."""
