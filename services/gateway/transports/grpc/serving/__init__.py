"""Serves the calls of gRPC; needs `grpcio`."""
