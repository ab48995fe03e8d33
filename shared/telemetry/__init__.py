"""Logs, traces and metrics of services."""
