"""Serves gRPC, if a port is set; `grpcio` is imported only then."""

from contextlib import AsyncExitStack
from importlib.metadata import version

import structlog

from services.gateway.transports.grpc.needs import GrpcNeeds
from shared.lifecycle import Service

log = structlog.get_logger(__name__)


async def open_grpc(stack: AsyncExitStack, service: Service, needs: GrpcNeeds) -> int:
    """Serves gRPC until the stack closes; returns the port, or 0 without `RYZ_GRPC_PORT`.

    Streams without a running request end when the service drains.

    Raises:
        Unavailable: The server cannot listen on the address.
    """
    context = needs.context
    settings = context.settings
    if not settings.grpc_port:
        return 0
    from services.gateway.transports.grpc.serving.metrics import GrpcMetrics  # noqa: PLC0415
    from services.gateway.transports.grpc.serving.open_calls import OpenCalls  # noqa: PLC0415
    from services.gateway.transports.grpc.serving.parts import GrpcParts  # noqa: PLC0415 (20 MB that few need)
    from services.gateway.transports.grpc.serving.server import grpc_server  # noqa: PLC0415

    calls = OpenCalls(context.admission.identities, context.admission.parties, 2 * settings.max_concurrent)
    parts = GrpcParts(needs, settings, GrpcMetrics(service.registry), version("ryzanstein"), calls)

    async def drain() -> None:
        parts.draining.set()

    service.on_drain(drain)
    port = await stack.enter_async_context(grpc_server(parts, context.admission.identities))
    log.info("serving gRPC", host=settings.grpc_host or settings.http_host, port=port)
    return port
