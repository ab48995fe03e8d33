"""Erases what the fleet has of a tenant."""
