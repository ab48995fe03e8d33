"""The health service of gRPC (`grpc.health.v1.Health`): it says what `/ready` says.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.gateway.transports.grpc.serving.call_failures import failure_of
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.open_calls import OpenCalls
from shared.errors import RyzError

HEALTH = "grpc.health.v1.Health"
_POLL_S = 1.0


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers health checks.

    Args:
        services: The names that a check may ask for, beside the empty one for the whole server.
        is_ready: Whether a group can take requests.
        draining: Set when the gateway takes no more requests; open watches are told and end.
        calls: Places of open calls; a watch is an idle one.
    """

    def __init__(
        self,
        services: frozenset[str],
        is_ready: Callable[[], Awaitable[bool]],
        draining: asyncio.Event,
        calls: OpenCalls,
    ) -> None:
        self._services = services | {""}
        self._is_ready = is_ready
        self._draining = draining
        self._calls = calls

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """The state now; a service that is not known is NOT_FOUND."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service; see the reflection service")
        return await self._state()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The state now, and again whenever it has changed; it is looked at once a second."""
        failure: RyzError | None = None
        try:
            with self._calls.open(context):
                await self._watch(request, context)
        except RyzError as error:
            failure = error
        if failure is not None:
            failed = failure_of(failure)
            await context.abort(failed.status, failed.message, tuple(failed.trailing))

    async def _watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        if request.service not in self._services:
            unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            await context.write(health_pb2.HealthCheckResponse(status=unknown))
            await self._draining.wait()
            return
        sent = None
        while True:
            draining = self._draining.is_set()
            state = await self._state()
            if state.status != sent:
                sent = state.status
                await context.write(state)
            if draining:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._draining.wait()

    async def _state(self) -> health_pb2.HealthCheckResponse:
        ready = await self._is_ready()
        kind = health_pb2.HealthCheckResponse
        return kind(status=kind.SERVING if ready else kind.NOT_SERVING)
