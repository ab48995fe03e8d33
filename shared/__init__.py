"""The contract between the services: messages, subjects, bus, client, errors, settings, telemetry, lifecycle.

Everything that two services must agree on is defined here once. It imports no service.
"""
