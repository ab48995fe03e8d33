"""Tenants on whole stacks: their page, and what they get of busy groups."""
