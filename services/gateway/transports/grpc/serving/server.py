"""A gRPC server of `grpcio` in the gateway's event loop, as an asynchronous context manager."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from services.gateway.admission.identity.identities import Identities
from services.gateway.settings import GatewaySettings
from services.gateway.transports.grpc.serving.key_check import KeyCheck
from services.gateway.transports.grpc.serving.method_handlers import add_services, needs_key
from services.gateway.transports.grpc.serving.parts import GrpcParts
from shared.errors import Unavailable
from shared.host.tcp_table import listens_here

STOP_S = 5.0  # for calls that still run when the server closes
_PING_EVERY_S = 10  # clients may ping so often, also without a call
_SPARE_CALLS = 256  # that have not got their place yet, or are giving it up
_SPARE_BYTES = 64 * 1024  # of a message, beside what becomes the body


@asynccontextmanager
async def grpc_server(parts: GrpcParts, identities: Identities) -> AsyncIterator[int]:
    """Serves inside the block and yields the port; at its end calls have `STOP_S` to end.

    Args:
        parts: What all calls share.
        identities: Find who makes a call.

    Raises:
        Unavailable: The server cannot listen on the address.
    """
    settings = parts.settings
    server = grpc.aio.server(
        interceptors=[KeyCheck(identities, parts.metrics, needs_key)],
        options=_options(settings),
        # `OpenCalls` bounds them before, so that idle ones give way
        maximum_concurrent_rpcs=2 * settings.max_concurrent + _SPARE_CALLS,
    )
    add_services(server, parts)
    port = _bind(server, settings)
    await server.start()
    try:
        yield port
    finally:
        parts.draining.set()
        await server.stop(STOP_S)


def _options(settings: GatewaySettings) -> list[tuple[str, int]]:
    """Options of gRPC's core (https://grpc.github.io/grpc/core/group__grpc__arg__keys.html)."""
    half_dead_ms = settings.constants.http.http_dead_peer_s * 500
    return [
        ("grpc.so_reuseport", int(settings.ports_held)),
        ("grpc.max_allowed_incoming_connections", settings.constants.grpc_max_connections),
        ("grpc.max_concurrent_streams", settings.constants.grpc_max_requests),
        ("grpc.max_receive_message_length", settings.max_body_bytes + _SPARE_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", settings.constants.http.http_max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.constants.http.http_max_header_bytes),
        ("grpc.server_handshake_timeout_ms", round(settings.constants.http.http_tls_handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", settings.keep_alive_s * 1000),
        ("grpc.keepalive_time_ms", half_dead_ms),
        ("grpc.keepalive_timeout_ms", half_dead_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_S * 1000),
    ]


def _bind(server: grpc.aio.Server, settings: GatewaySettings) -> int:
    host, port = settings.grpc_host or settings.http_host, settings.grpc_port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        # with SO_REUSEPORT the kernel would let a second server of this user have half of the connections
        if settings.ports_held and listens_here(host, port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        if settings.http_cert:
            return server.add_secure_port(address, _credentials(settings))
        return server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        raise Unavailable(
            f"cannot listen on {address} for gRPC: {error}; choose another RYZ_GRPC_PORT",
            reason="address_in_use",
        ) from error


def _credentials(settings: GatewaySettings) -> grpc.ServerCredentials:
    """The certificate of HTTP, whose files were checked before."""
    chain = Path(settings.http_cert).read_bytes()
    key = Path(settings.http_key).read_bytes() if settings.http_key else chain
    return grpc.ssl_server_credentials([(key, chain)])
