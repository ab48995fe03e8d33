"""Answers `ModelStreamInfer`: any number of requests on one stream, each with one response or many.

Requests run side by side; those of one session one after another, in the order in which they came. A client
that does not read stops its generations, and is cut off after `RYZ_WRITE_TIMEOUT_S`.
"""

import asyncio
import functools
from collections.abc import AsyncIterator

import structlog

from services.gateway.admission.held_slots import HeldSlot
from services.gateway.transports.grpc.protocol.inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from services.gateway.transports.grpc.serving.call_failures import (
    GrpcFailure,
    failure_of,
    interrupted,
    too_slow,
)
from services.gateway.transports.grpc.serving.call_metadata import add_request_headers, headers_of
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.parts import GrpcParts
from services.gateway.transports.grpc.serving.single_inference import SingleInference
from services.gateway.transports.grpc.translation.inference_answer import failed_response
from services.gateway.transports.grpc.translation.inference_request import InferenceCall, read_call

log = structlog.get_logger(__name__)

_SHOWN = 1024  # characters of a name or an id that was refused
_TRUE_ERRORS = "triton_grpc_error"  # metadata: the first error ends the stream with its status


class StreamInference:
    """Answers streams.

    Args:
        parts: What all calls share.
        single: Answers one request.
    """

    def __init__(self, parts: GrpcParts, single: SingleInference) -> None:
        self._parts = parts
        self._single = single

    async def infer(
        self, requests: AsyncIterator[ModelInferRequest], context: Context, slot: HeldSlot
    ) -> None:
        """Answers one call; raises what becomes its status."""
        self._parts.metrics.open_streams.inc()
        try:
            await _OpenStream(self._parts, self._single, context, slot).run(requests)
        finally:
            self._parts.metrics.open_streams.dec()


class _OpenStream:
    def __init__(self, parts: GrpcParts, single: SingleInference, context: Context, slot: HeldSlot) -> None:
        self._parts = parts
        self._single = single
        self._context = context
        self._slot = slot
        metadata = list(context.invocation_metadata() or ())
        self._headers = headers_of(metadata, single=False)
        self._true_errors = any(name == _TRUE_ERRORS and value == "true" for name, value in metadata)
        self._slots = asyncio.Semaphore(parts.settings.constants.grpc_max_requests)
        self._writing = asyncio.Lock()
        self._turns: dict[str, asyncio.Task[None]] = {}  # the newest request of each session

    async def run(self, requests: AsyncIterator[ModelInferRequest]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(requests, group))
                draining = group.create_task(self._parts.draining.wait())
                await asyncio.wait([reading, draining], return_when=asyncio.FIRST_COMPLETED)
                cut = not reading.done()
                reading.cancel()
                draining.cancel()
        except* Exception as failures:
            raise failures.exceptions[0] from None  # the first ends the stream
        if cut:
            raise interrupted()  # after the answers to all requests that came

    async def _read(self, requests: AsyncIterator[ModelInferRequest], group: asyncio.TaskGroup) -> None:
        async for request in requests:
            await self._slots.acquire()
            self._parts.metrics.stream_requests.inc()
            try:
                call = read_call(request)
            except Exception as error:
                try:
                    await self._fail(request.model_name[:_SHOWN], request.id[:_SHOWN], error)
                finally:
                    self._slots.release()
                continue
            before = self._turns.get(call.session_id) if call.session_id else None
            self._slot.begin_request()
            task = group.create_task(self._answer(call, before))
            if call.session_id:
                self._turns[call.session_id] = task
            task.add_done_callback(functools.partial(self._ended, call.session_id))

    def _ended(self, session_id: str, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._slot.end_request()
        if self._turns.get(session_id) is task:
            del self._turns[session_id]

    async def _answer(self, call: InferenceCall, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        headers = dict(self._headers)
        add_request_headers(headers, call, self._context.time_remaining())

        async def write(response: ModelInferResponse) -> None:
            await self._write(ModelStreamInferResponse(infer_response=response))

        try:
            await self._single.respond(call, headers, self._context.peer(), write, streamed=True)
        except Exception as error:
            await self._fail(call.model, call.request_id, error)

    async def _fail(self, model: str, request_id: str, error: Exception) -> None:
        """Sends the error of one request; the stream goes on, unless its caller asked otherwise."""
        failure = failure_of(error)
        if failure.code == "internal" and not isinstance(error, GrpcFailure):
            log.error("a request on a gRPC stream failed", exc_info=error)
        if self._true_errors or failure.ends_stream:
            raise failure
        response = failed_response(model, request_id, failure.parameters)
        await self._write(ModelStreamInferResponse(error_message=failure.message, infer_response=response))

    async def _write(self, response: ModelStreamInferResponse) -> None:
        limit_s = self._parts.settings.write_timeout_s
        try:
            async with self._writing, asyncio.timeout(limit_s):  # others' writes take no time from this one
                await self._context.write(response)
        except TimeoutError:
            self._parts.metrics.slow_readers.inc()
            raise too_slow(limit_s) from None
