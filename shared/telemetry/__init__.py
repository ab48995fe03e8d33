"""Logs, traces and metrics: how a service says what it does. `logs.py`, `traces.py`, `metrics.py`."""
