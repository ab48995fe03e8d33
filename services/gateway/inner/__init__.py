"""Calls of the gateway's own routes from its other doors, such as WebSockets, gRPC and batches."""
