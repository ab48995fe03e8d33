"""Limits of tenants and keys: windows of time, the rule of portions, and what a holder has. Pure."""
