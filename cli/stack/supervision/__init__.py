"""Keeps a stack running: `stack.py` all services, `supervised.py` one of them, `process.py` its process."""
