"""Requests of the load generator by gRPC: calls of `ModelInfer`, or one stream for each request in flight.

All share one connection, as the calls of one gRPC client do. Requests are encoded once, like those of HTTP.
"""

import asyncio
import json
import secrets
from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import Any

import grpc

from benchmarks.serving.connection import REOPEN_DELAY_S, LoadTarget, Recorder
from benchmarks.serving.requests import MARK, TOPICS
from services.gateway.grpc.protocol.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

_METHOD = "/inference.GRPCInferenceService/"
_FINAL = "triton_final_response"


class GrpcRequests:
    """Makes requests of which no two are alike, each at the cost of one bytes join."""

    def __init__(self, model: str, tokens: int, stream: bool) -> None:
        self._run = secrets.token_hex(4).encode()
        self._numbers = count()
        self._halves = []
        for topic in TOPICS:
            messages = json.dumps([{"role": "user", "content": f"{topic} {MARK}?"}])
            request = ModelInferRequest(model_name=model)
            request.parameters["messages"].string_param = messages
            request.parameters["max_tokens"].int64_param = tokens
            request.parameters["ignore_eos"].bool_param = True
            if stream:
                tensor = request.inputs.add(name="stream", datatype="BOOL", shape=[1])
                tensor.contents.bool_contents.append(True)
            before, _, after = request.SerializeToString().partition(MARK.encode())
            self._halves.append((before, after))

    def next(self) -> bytes:
        """Return the next request."""
        number = next(self._numbers)
        before, after = self._halves[number % len(self._halves)]
        return b"%b%b%012d%b" % (before, self._run, number, after)


class GrpcConnection:
    """Keeps exactly one request in flight."""

    def __init__(
        self, channel: grpc.aio.Channel, target: LoadTarget, requests: GrpcRequests, recorder: Recorder
    ) -> None:
        self._channel: Any = channel
        self._target = target
        self._requests = requests
        self._recorder = recorder
        self._task: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def open(self) -> None:
        """Send requests in the background until the recorder is stopping."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End, whatever it waits for."""
        self.idle.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._recorder.stopping:
            try:
                await (self._stream() if self._target.stream else self._single())
            except grpc.aio.AioRpcError as error:
                self._recorder.count_problem(f"{error.code().name}: {(error.details() or '')[:100]}")
                await asyncio.sleep(REOPEN_DELAY_S)
            finally:
                self.idle.set()

    async def _single(self) -> None:
        call = self._channel.unary_unary(_METHOD + "ModelInfer")
        while not self._recorder.stopping:
            self.idle.clear()
            began = perf_counter()
            response = ModelInferResponse.FromString(await call(self._requests.next()))
            now = perf_counter()
            text = sum(len(raw) > 4 for raw in response.raw_output_contents[:1])
            self._judge(response, text, began, now, now)

    async def _stream(self) -> None:
        call = self._channel.stream_stream(_METHOD + "ModelStreamInfer")()
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
    requests = GrpcRequests(model, target.tokens, target.stream)
    channels: list[grpc.aio.Channel] = []

    def make() -> GrpcConnection:
        if not channels:
            channels.append(grpc.aio.insecure_channel(f"{target.host}:{target.port}"))
        return GrpcConnection(channels[0], target, requests, recorder)

    return make
