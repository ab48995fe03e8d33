"""Opens the gRPC door, if there is to be one; `grpcio` is imported only then."""

from contextlib import AsyncExitStack
from importlib.metadata import version

import structlog

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.inner.inner_calls import InnerCalls
from shared.lifecycle import Service

log = structlog.get_logger(__name__)


async def open_grpc(
    stack: AsyncExitStack,
    service: Service,
    context: GatewayContext,
    direct: DirectCalls,
    inner: InnerCalls,
) -> int:
    """Serves gRPC until the stack closes; returns the port, or 0 without `RYZ_GRPC_PORT`.

    Streams without a running request end when the service drains.

    Raises:
        Unavailable: The server cannot listen on the address.
    """
    settings = context.settings
    if not settings.grpc_port:
        return 0
    from services.gateway.grpc.serving.door_parts import DoorParts  # noqa: PLC0415 (20 MB that few need)
    from services.gateway.grpc.serving.grpc_metrics import GrpcMetrics  # noqa: PLC0415
    from services.gateway.grpc.serving.grpc_server import grpc_server  # noqa: PLC0415
    from services.gateway.grpc.serving.open_calls import OpenCalls  # noqa: PLC0415

    calls = OpenCalls(context.admission.keyring, context.admission.parties, 2 * settings.max_concurrent)
    parts = DoorParts(direct, inner, settings, GrpcMetrics(service.registry), version("ryzanstein"), calls)

    async def drain() -> None:
        parts.draining.set()

    service.on_drain(drain)
    port = await stack.enter_async_context(grpc_server(parts, context.admission.keyring))
    log.info("serving gRPC", host=settings.grpc_host or settings.http_host, port=port)
    return port
