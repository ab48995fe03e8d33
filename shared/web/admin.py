"""HTTP beside a service: the admin endpoints, and a uvicorn server that lives and dies with an exit stack.

Signals stay with `lifecycle.py`; the server here never installs handlers of its own.
"""

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shared.errors import Unavailable
from shared.host.tcp_table import listens_here
from shared.web.gate import Gate
from shared.web.hosts import HostRule
from shared.web.keys import BearerKey
from shared.web.limits import HttpLimits
from shared.web.metrics_page import MetricsPage
from shared.web.protocol import LimitedProtocol

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5
BACKLOG = 2048
SEND_BUFFER = 256 * 1024  # bytes; by itself the kernel keeps up to 4 MiB for one that does not read
_DEFAULTS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "interface": "asgi3",
    "lifespan": "off",
    "ws": "none",
    "backlog": BACKLOG,
    "proxy_headers": False,
    "server_header": False,
    "date_header": False,
    "timeout_graceful_shutdown": STOP_TIMEOUT_S,
    # browsers neither guess types of answers nor keep them: they hold people's text
    "headers": [("x-content-type-options", "nosniff"), ("cache-control", "no-store")],
}
# of the admin endpoints: Prometheus, health checks, a person with curl
ADMIN_LIMITS = HttpLimits(
    max_connections=64,
    http_max_connections_per_address=32,
    http_max_header_bytes=16 * 1024,
    http_max_target_bytes=1024,
    http_first_byte_s=5.0,
    http_headers_s=5.0,
    http_unread_s=2.0,
    http_max_pipelined=1,
)


log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        self._gate.expire(asyncio.get_running_loop().time())
        return await super().on_tick(counter)


@contextlib.asynccontextmanager
async def http_server(
    app: ASGIApp, host: str, port: int, gate: Gate, *, held: bool = False, **options: Any
) -> AsyncIterator[int]:
    """Serves `app` inside the block and yields the port; 0 takes a free one.

    Args:
        app: gets the requests that are within the limits.
        host: an address to listen on.
        port: its port.
        gate: the limits of connections and headers.
        held: another socket of this user is bound to the port and leaves the listening to us.
        options: go to uvicorn.

    Raises:
        Unavailable: the address cannot be had.
    """
    try:
        sock = _listen(host, port, held=held)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}", reason="address_in_use") from error
    close_dead_peers(sock, gate.limits.http_dead_peer_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of accepted connections, too
    config = uvicorn.Config(app, **{**_DEFAULTS, **options})
    config.load()
    # TLS begins in our protocol, so that a connection is admitted before it costs a handshake
    protocol = functools.partial(LimitedProtocol, gate=gate, tls=config.ssl)
    config.http_protocol_class, config.ssl = protocol, None  # type: ignore[assignment]
    server = _Server(config, gate)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not server.started and not task.done():  # noqa: ASYNC110 (uvicorn has no event)
                await asyncio.sleep(0.002)
        if task.done():
            task.result()
            raise Unavailable(f"the HTTP server on {host}:{port} ended at its start", reason="start_failed")
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        gate.close()
        sock.close()


def _listen(host: str, port: int, *, held: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with SO_REUSEPORT the kernel would let a second server of this user have half of the connections
    if held and port and listens_here(host, port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=held)


def close_dead_peers(sock: socket.socket, after_s: int) -> None:
    """Connections accepted here end when their other side acknowledges nothing for so long."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, after_s // 2)),
        ("TCP_KEEPINTVL", max(1, after_s // 6)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", after_s * 1000),
    ):
        if hasattr(socket, name):  # Linux has all four
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def admin_app(
    is_ready: Callable[[], bool],
    describe: Callable[[], dict[str, Any]],
    registry: CollectorRegistry,
    key: BearerKey,
    hosts: HostRule,
) -> Starlette:
    """`/live` says that the process answers, `/ready` whether it takes work, `/metrics` is for Prometheus.

    Args:
        is_ready: whether it takes work.
        describe: the body of /ready.
        registry: what /metrics shows.
        key: what /metrics asks for, and the details of /ready.
        hosts: the names that requests may come by.
    """

    def named(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            host = request.headers.get("host", "").encode("latin-1")
            if host and not hosts.allows(host):
                return JSONResponse({"error": f"this service is not called {host!r}"}, status_code=421)
            return endpoint(request)

        return checked

    def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    def ready(request: Request) -> Response:
        return JSONResponse(readiness_shown(describe(), key, request), status_code=200 if is_ready() else 503)

    return Starlette(
        routes=[
            Route("/live", named(live)),
            Route("/ready", named(ready)),
            Route("/metrics", named(MetricsPage(registry, key).answer)),
        ]
    )


def readiness_shown(described: dict[str, Any], key: BearerKey, request: Request) -> dict[str, Any]:
    """The body of /ready: whether, for all; why, for those who have the key if there is one."""
    if key.is_set and not key.matches(request.headers.get("authorization", "")):
        return {"status": described["status"]}
    return described
