"""The admin endpoints of a service: `/live`, `/ready` and `/metrics`."""

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.web.bearer_key import BearerKey
from shared.web.gate import Gate
from shared.web.host_rules import HostRule
from shared.web.http_limits import HttpConnections, HttpLimits
from shared.web.metrics_page import MetricsPage

# enough for Prometheus, health checks, and a person with curl
_CONNECTIONS = HttpConnections(max_connections=64, http_max_connections_per_address=32)
_LIMITS = HttpLimits(
    http_max_header_bytes=16 * 1024,
    http_max_target_bytes=1024,
    http_first_byte_s=5.0,
    http_headers_s=5.0,
    http_unread_s=2.0,
    http_max_pipelined=1,
)


def admin_gate() -> Gate:
    """Makes the gate of the server."""
    return Gate(_CONNECTIONS, _LIMITS)


def admin_app(
    is_ready: Callable[[], bool],
    describe: Callable[[], dict[str, Any]],
    registry: CollectorRegistry,
    key: BearerKey,
    hosts: HostRule,
) -> Starlette:
    """Makes the application: `/live` answers always, `/ready` with 503 while the service takes no work.

    Args:
        is_ready: Whether the service takes work.
        describe: The body of /ready.
        registry: The metrics that /metrics shows.
        key: Needed for /metrics and for the details of /ready, if it is set.
        hosts: The names by which requests may come.
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
            Route("/metrics", named(MetricsPage(registry, key).answer_scrape)),
        ]
    )


def readiness_shown(described: dict[str, Any], key: BearerKey, request: Request) -> dict[str, Any]:
    """The body of /ready: the status for all callers, details only with the key if one is set."""
    if key.is_set and not key.matches(request.headers.get("authorization", "")):
        return {"status": described["status"]}
    return described
