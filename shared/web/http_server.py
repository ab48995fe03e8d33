"""A uvicorn server within the limits of a `Gate`, as an asynchronous context manager.

Signals belong to `lifecycle.py`; the server never installs handlers of its own.
"""

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from shared.errors import Unavailable
from shared.host.tcp_table import listens_here
from shared.web.gate import Gate
from shared.web.limited_protocol import LimitedProtocol

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5
BACKLOG = 2048
FIRST_PASSED = 3
SEND_BUFFER = 256 * 1024  # bytes; the kernel's default would keep up to 4 MiB for one that does not read
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
    # answers hold private text: browsers neither guess their types nor keep them
    "headers": [("x-content-type-options", "nosniff"), ("cache-control", "no-store")],
}


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
    app: ASGIApp,
    host: str,
    port: int,
    gate: Gate,
    *,
    held: bool = False,
    passed: socket.socket | None = None,
    web_sockets: frozenset[bytes] = frozenset(),
    **options: Any,
) -> AsyncIterator[int]:
    """Serves `app` inside the block and yields the port.

    Args:
        app: Gets the requests that are within the limits.
        host: The address to listen on.
        port: Its port; 0 takes a free one.
        gate: The limits of connections and headers.
        held: Another socket of this user is bound to the port and does not listen.
        passed: A socket that listens already, in place of one at `host` and `port`; see `passed_socket`.
        web_sockets: Paths at which a connection may become a WebSocket; see `web_socket.py`.
        options: Options of uvicorn.

    Raises:
        Unavailable: The server cannot listen on the address.
    """
    try:
        sock = passed or _listen(host, port, held=held)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}", reason="address_in_use") from error
    close_dead_peers(sock, gate.limits.http_dead_peer_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
    config = uvicorn.Config(app, **{**_DEFAULTS, **options})
    config.load()
    # the protocol begins TLS itself, so that a connection is admitted before its handshake
    protocol = functools.partial(LimitedProtocol, gate=gate, tls=config.ssl, web_sockets=web_sockets)
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


def passed_socket() -> socket.socket | None:
    """Takes the listening socket that a supervisor has opened for this process, if there is one.

    The protocol is that of systemd, sd_listen_fds(3): `LISTEN_PID` names this process, `LISTEN_FDS` counts
    the sockets, and the first one has the number 3.
    """
    count, pid = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    if pid != str(os.getpid()) or not count.isdecimal() or not int(count):
        return None
    os.set_inheritable(FIRST_PASSED, False)
    return socket.socket(fileno=FIRST_PASSED)


def _listen(host: str, port: int, *, held: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with SO_REUSEPORT the kernel would let a second server of this user have half of the connections
    if held and port and listens_here(host, port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=held)


def close_dead_peers(sock: socket.socket, after_s: int) -> None:
    """Ends accepted connections whose other side acknowledges nothing for `after_s` seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, after_s // 2)),
        ("TCP_KEEPINTVL", max(1, after_s // 6)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", after_s * 1000),
    ):
        if hasattr(socket, name):  # Linux has all four
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
