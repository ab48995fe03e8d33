"""Routing decisions, pure: start at `decision.py` for what is decided, at `fleet.py` for what is known."""
