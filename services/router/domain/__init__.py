"""Routing decisions, pure: start at `policy.py` for what is decided, at `fleet.py` for what is known."""
