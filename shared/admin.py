"""HTTP beside a service: the admin endpoints, and a uvicorn server that lives and dies with an exit stack.

Signals stay with `lifecycle.py`; the server here never installs handlers of its own.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shared.errors import Unavailable

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def http_server(app: ASGIApp, host: str, port: int, **options: Any) -> AsyncIterator[int]:
    """Serves `app` inside the block and yields the port; 0 takes a free one. `options` go to uvicorn.

    Raises:
        Unavailable: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error}", reason="address_in_use") from error
    defaults = {"log_config": None, "access_log": False, "lifespan": "off"}
    server = _Server(
        uvicorn.Config(app, **{**defaults, "timeout_graceful_shutdown": STOP_TIMEOUT_S, **options})
    )
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
        sock.close()


def admin_app(
    is_ready: Callable[[], bool], describe: Callable[[], dict[str, Any]], registry: CollectorRegistry
) -> Starlette:
    """`/live` says that the process answers, `/ready` whether it takes work, `/metrics` is for Prometheus."""

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        good = is_ready()
        return JSONResponse(describe(), status_code=200 if good else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)])
