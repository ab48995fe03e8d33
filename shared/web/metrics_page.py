"""The answer of `/metrics`, of the gateway and of the admin endpoints."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.web.keys import BearerKey

KEPT_S = 0.25  # far below the time between two scrapes


class MetricsPage:
    """Makes the text, which takes milliseconds of the event loop, at most once in `KEPT_S`.

    Args:
        registry: what is shown.
        key: what the caller needs, if one is set.
        clock: seconds that only grow.
    """

    def __init__(
        self, registry: CollectorRegistry, key: BearerKey, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._key = key
        self._clock = clock
        self._text = b""
        self._made_s = 0.0

    def answer(self, request: Request) -> Response:
        """The text, of this moment or of up to `KEPT_S` before; 401 without the key."""
        if self._key.is_set and not self._key.matches(request.headers.get("authorization", "")):
            return JSONResponse(
                {"error": "send the key of RYZ_METRICS_KEY as `Authorization: Bearer <key>`"},
                status_code=401,
                headers={"www-authenticate": "Bearer"},
            )
        if not self._text or self._clock() - self._made_s >= KEPT_S:
            self._text = generate_latest(self._registry)
            self._made_s = self._clock()
        return Response(self._text, media_type=CONTENT_TYPE_LATEST)
