"""Routing policies against modelled worker groups."""
