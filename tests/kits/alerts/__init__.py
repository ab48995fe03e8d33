"""Stacks whose faults are watched by a real Prometheus with the alert rules of deploy/prometheus."""
