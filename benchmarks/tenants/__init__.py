"""Tenants that share a group: one floods it, two behave."""
