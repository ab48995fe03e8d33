"""Erases what the service has of a tenant."""
