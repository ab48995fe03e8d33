"""The APIs in front of the bus: HTTP, WebSockets, gRPC and whole calls over NATS.

`__main__.py` puts a gateway together, `app.py` its HTTP routes; docs/architecture.md says what each
folder holds.
"""
