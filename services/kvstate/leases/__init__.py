"""Leases by name, each with one holder: the contract of their store, the store on Redis, and the call."""
