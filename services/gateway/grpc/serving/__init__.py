"""Serves the calls of the gRPC door; needs `grpcio`."""
