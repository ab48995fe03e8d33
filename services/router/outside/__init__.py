"""Limits and checks for requests of services outside the deployment."""
