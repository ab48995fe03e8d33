"""The messages of the Open Inference Protocol; `inference_pb2` is made from `inference.proto`."""
