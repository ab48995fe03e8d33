"""Requests of the Open Inference Protocol for tests: Triton's own client, and bare calls beside it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from tests.kits.gateway.gateway import Gateway

SERVICE = "inference.GRPCInferenceService"
HELLO = [{"role": "user", "content": "Hello"}]


def texts(name: str, *values: str) -> Any:
    """An input of Triton's client with texts."""
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode() for value in values], dtype=object))
    return tensor


def number(name: str, value: float, datatype: str, kind: Any) -> Any:
    """An input of Triton's client with one number or flag."""
    tensor = triton.InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(np.array([value], dtype=kind))
    return tensor


def streamed() -> Any:
    """The input that asks for an answer in pieces."""
    return number("stream", True, "BOOL", bool)


def chat(messages: Any = HELLO) -> Any:
    """The input that has the messages of a chat."""
    return texts("messages", json.dumps(messages))


@asynccontextmanager
async def triton_client(gateway: Gateway) -> AsyncIterator[Any]:
    """Triton's client, connected to the gateway."""
    async with triton.InferenceServerClient(f"127.0.0.1:{gateway.grpc_port}") as client:
        yield client


def text_request(model: str = "demo", *, stream: bool = False, **parameters: str) -> pb.ModelInferRequest:
    """A request by the protocol's own messages."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Hi")
    if stream:
        request.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    return request


class BareClient:
    """Calls of one channel, with status, metadata and deadline at hand."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary(self, method: str, request: Any, answer: Any, **options: Any) -> Any:
        """A call with one request and one response."""
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), answer.FromString
        )
        return call(request, **options)

    def infer(self, request: pb.ModelInferRequest, **options: Any) -> Any:
        """A call of ModelInfer."""
        return self.unary("ModelInfer", request, pb.ModelInferResponse, **options)

    def stream(self, requests: AsyncIterator[pb.ModelInferRequest] | None = None, **options: Any) -> Any:
        """A call of ModelStreamInfer, to be read from, and to be written to if no requests are given."""
        call = self._channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        return call(requests, **options)


@asynccontextmanager
async def bare_channel(gateway: Gateway) -> AsyncIterator[Any]:
    """A channel that sends and returns bytes."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        yield channel


@asynccontextmanager
async def bare_client(gateway: Gateway, **options: Any) -> AsyncIterator[BareClient]:
    """A channel of its own to the gateway."""
    given = [("grpc.use_local_subchannel_pool", 1), *options.items()]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}", options=given) as channel:
        yield BareClient(channel)
