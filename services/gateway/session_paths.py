"""What stands before the session routes: it keeps encoded slashes in ids, and counts the requests."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.metrics import GatewayMetrics
from services.gateway.session_routes import PREFIX


def is_session_path(path: str) -> bool:
    """Whether a request is for the session routes."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


class SessionPaths:
    """An ASGI application before the framework's.

    Servers decode paths before routes are matched, so that `a%2Fpin` would look like the pin of `a`. Here
    routes are matched with the path as it was sent, and the handlers decode the id.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        started_s = time.monotonic()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                self._metrics.response_bytes.inc(len(message.get("body", b"")))
            await send(message)

        try:
            await self._app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, sent)
        finally:
            self._metrics.ended(PREFIX, status, time.monotonic() - started_s)
