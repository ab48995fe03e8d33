"""The contract between the services: messages, subjects, bus, client, errors, settings, telemetry, lifecycle.

Everything that two services have to agree on is spelled here once. Nothing in here imports a service.
"""
