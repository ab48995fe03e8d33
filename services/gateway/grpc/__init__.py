"""The gRPC door: the Open Inference Protocol with Triton's stream, as a translation of the HTTP routes.

`assembly.py` opens it. Only `protocol/` and what `assembly.py` imports when the door is on need `grpcio`.
"""
