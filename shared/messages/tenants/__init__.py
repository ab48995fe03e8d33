"""Tenants, their keys and limits, what they have used, and the erasure of their data."""
