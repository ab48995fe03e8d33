"""Profiles of a group: what the leader records for some seconds, together with its ranks."""
