"""gRPC: the Open Inference Protocol with Triton's stream, as a translation of calls and their answers.

`assembly.py` opens it. Only `protocol/` and what `assembly.py` imports when it is on need `grpcio`.
"""
