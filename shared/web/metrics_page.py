"""The answer of `/metrics`, of the gateway and of the admin endpoints."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.web.keys import BearerKey

FRESH_PER_S = 8.0  # texts that are made anew, and as many at once: people and scrapers see this moment


class MetricsPage:
    """Makes the text, which takes milliseconds of the event loop, `FRESH_PER_S` times a second at most.

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
        self._fresh = FRESH_PER_S  # texts that may be made now
        self._asked_s = clock()

    def answer(self, request: Request) -> Response:
        """The text, of this moment or, for one of very many callers, the last one; 401 without the key."""
        if self._key.is_set and not self._key.matches(request.headers.get("authorization", "")):
            return JSONResponse(
                {"error": "send the key of RYZ_METRICS_KEY as `Authorization: Bearer <key>`"},
                status_code=401,
                headers={"www-authenticate": "Bearer"},
            )
        now = self._clock()
        self._fresh = min(FRESH_PER_S, self._fresh + FRESH_PER_S * (now - self._asked_s))
        self._asked_s = now
        if self._fresh >= 1:
            self._fresh -= 1
            self._text = generate_latest(self._registry)
        return Response(self._text, media_type=CONTENT_TYPE_LATEST)
