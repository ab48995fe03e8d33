"""The application in front of the session routes: keeps encoded slashes in ids, counts and logs requests."""

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.admission.request_headers import request_ids
from services.gateway.metrics import GatewayMetrics
from services.gateway.resources.sessions.tenants import PREFIX
from shared.identity import new_request_id
from shared.telemetry.request_ids import bind_request

log = structlog.get_logger(__name__)


def is_session_path(path: str) -> bool:
    """Returns whether a request is for the session routes."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


class SessionPaths:
    """An ASGI application in front of the framework's.

    Servers decode a path before routes are matched, so that `a%2Fpin` would look like the pin of `a`. Here
    routes are matched against the path as it was sent, and the handlers decode the id.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, *, log_requests: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        started_s = time.monotonic()
        status = 500
        shown_id, _ = request_ids(dict(scope["headers"]), new_request_id())

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = (b"x-request-id", shown_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), named]}
            elif message["type"] == "http.response.body":
                self._metrics.response_bytes.inc(len(message.get("body", b"")))
            await send(message)

        path = scope["raw_path"].decode("latin-1")
        try:
            with bind_request(shown_id):
                await self._app({**scope, "path": path}, receive, sent)
        finally:
            seconds = time.monotonic() - started_s
            self._metrics.count_answer(PREFIX, status, seconds)
            if self._log_requests:
                log.info(
                    "request",
                    shown_id=shown_id,
                    route=PREFIX,
                    method=scope["method"],
                    status=status,
                    seconds=round(seconds, 6),
                )
