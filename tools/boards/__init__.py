"""Grafana boards written as code; `python -m tools.boards` writes deploy/grafana/*.json."""
