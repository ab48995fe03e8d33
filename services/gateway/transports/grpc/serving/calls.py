"""The frame around every call: it turns exceptions into statuses, and counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from services.gateway.admission.held_slots import HeldSlot
from services.gateway.transports.grpc.serving.call_failures import GrpcFailure, failure_of
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.metrics import GrpcMetrics
from services.gateway.transports.grpc.serving.open_calls import OpenCalls
from shared.errors import InvalidRequest

Handle = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]
Unary = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[AsyncIterator[Any], Context, HeldSlot], Awaitable[None]]

log = structlog.get_logger(__name__)


def _parsed(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the message is no {kind.DESCRIPTOR.full_name}") from None


class CallWrapper:
    """Wraps handlers of calls.

    Args:
        metrics: Counts them.
        calls: Has their places.
    """

    def __init__(self, metrics: GrpcMetrics, calls: OpenCalls) -> None:
        self._metrics = metrics
        self._calls = calls

    def unary(self, method: str, handle: Unary, kind: type[Message]) -> Handle:
        """The handler of a method with one request and one response.

        It is one of streams, which reads its message itself: a call whose message does not come can be ended.

        Args:
            method: Its name.
            handle: Answers a request.
            kind: Of the request.
        """

        async def answered(pieces: AsyncIterator[bytes], context: Context) -> Any:
            with self._calls.open(context) as slot:
                data = await anext(aiter(pieces), None)
                if data is None:
                    raise InvalidRequest("the call has no message")
                slot.begin_request()
                return await handle(_parsed(kind, data), context)

        async def call(pieces: AsyncIterator[bytes], context: Context) -> None:
            await context.write(await self._run(method, answered(pieces, context), context))

        return call

    def stream(self, method: str, handle: Stream, kind: type[Message]) -> Handle:
        """The handler of a method with streams both ways; it writes by itself, and says when it is idle.

        Arguments as above.
        """

        async def parsed(pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for data in pieces:
                yield _parsed(kind, data)

        async def in_slot(pieces: AsyncIterator[bytes], context: Context) -> None:
            with self._calls.open(context) as slot:
                await handle(parsed(pieces), context, slot)

        async def call(pieces: AsyncIterator[bytes], context: Context) -> None:
            await self._run(method, in_slot(pieces, context), context)

        return call

    async def _run(self, method: str, handling: Awaitable[Any], context: Context) -> Any:
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), grpc.StatusCode.CANCELLED
        try:
            result = await handling
            status = grpc.StatusCode.OK
            return result
        except Exception as error:
            failure = failure_of(error)
            status = failure.status
            if failure.code == "internal" and not isinstance(error, GrpcFailure):
                log.error("a gRPC call failed", method=method, exc_info=error)
        finally:
            self._metrics.count_call(method, status.name, loop.time() - began_s)
        return await context.abort(failure.status, failure.message, tuple(failure.trailing))
