"""Requests of the load generator by gRPC: calls of `ModelInfer`, or one stream for each request in flight.

All share one connection, as the calls of one gRPC client do. Requests are encoded once, like those of HTTP.
"""

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import grpc

from benchmarks.serving.connection import LoadTarget, Recorder
from benchmarks.serving.request_loop import RequestLoop
from benchmarks.serving.requests import NumberedRequests
from services.gateway.transports.grpc.protocol.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

_METHOD = "/inference.GRPCInferenceService/"
_FINAL = "triton_final_response"


def grpc_requests(model: str, tokens: int, stream: bool) -> NumberedRequests:
    """Makes requests of `ModelInfer`."""

    def encoded(content: str) -> bytes:
        request = ModelInferRequest(model_name=model)
        request.parameters["messages"].string_param = json.dumps([{"role": "user", "content": content}])
        request.parameters["max_tokens"].int64_param = tokens
        request.parameters["ignore_eos"].bool_param = True
        if stream:
            tensor = request.inputs.add(name="stream", datatype="BOOL", shape=[1])
            tensor.contents.bool_contents.append(True)
        whole: bytes = request.SerializeToString()
        return whole

    return NumberedRequests(encoded)


class GrpcConnection(RequestLoop):
    """Sends requests by calls, or on a stream."""

    def __init__(
        self, channel: grpc.aio.Channel, target: LoadTarget, requests: NumberedRequests, recorder: Recorder
    ) -> None:
        super().__init__(target, recorder)
        self._channel: Any = channel
        self._requests = requests
        self._metadata = [(name.lower(), value) for name, value in target.authorization().items()]

    async def _ask(self) -> str:
        try:
            await (self._stream() if self._target.stream else self._single())
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {(error.details() or '')[:100]}"
        return ""

    async def _single(self) -> None:
        call = self._channel.unary_unary(_METHOD + "ModelInfer")
        while not self._recorder.stopping:
            self.idle.clear()
            began = perf_counter()
            response = ModelInferResponse.FromString(
                await call(self._requests.next(), metadata=self._metadata)
            )
            now = perf_counter()
            text = sum(len(raw) > 4 for raw in response.raw_output_contents[:1])
            self._judge(response, text, began, now, now)

    async def _stream(self) -> None:
        call = self._channel.stream_stream(_METHOD + "ModelStreamInfer")(metadata=self._metadata)
        try:
            while not self._recorder.stopping:
                self.idle.clear()
                began, first, text = perf_counter(), 0.0, 0
                await call.write(self._requests.next())
                while True:
                    data = await call.read()
                    first = first or perf_counter()
                    if data is grpc.aio.EOF:
                        self._recorder.count_problem(f"the stream ended: {await call.code()}")
                        return
                    answer = ModelStreamInferResponse.FromString(data)
                    if answer.error_message:
                        self._recorder.count_problem(answer.error_message[:100])
                        break
                    response = answer.infer_response
                    text += len(response.raw_output_contents[0]) > 4
                    if response.parameters[_FINAL].bool_param:
                        self._judge(response, text, began, first, perf_counter())
                        break
        finally:
            call.cancel()

    def _judge(
        self, response: ModelInferResponse, events: int, began: float, first: float, now: float
    ) -> None:
        self.idle.set()
        tokens = [
            int.from_bytes(raw, "little")
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
            if output.name == "num_output_tokens"
        ]
        if tokens != [self._target.tokens]:
            self._recorder.count_problem(f"{tokens} completion tokens instead of {self._target.tokens}")
        elif not events:
            self._recorder.count_problem("empty content")
        else:
            self._recorder.count_answer(now - began, first - began, events)


def grpc_connections(target: LoadTarget, model: str, recorder: Recorder) -> Callable[[], GrpcConnection]:
    """Return the maker of connections, which share a channel that the first of them opens."""
    requests = grpc_requests(model, target.tokens, target.stream)
    channels: list[grpc.aio.Channel] = []

    def make() -> GrpcConnection:
        if not channels:
            channels.append(grpc.aio.insecure_channel(f"{target.host}:{target.port}"))
        return GrpcConnection(channels[0], target, requests, recorder)

    return make
