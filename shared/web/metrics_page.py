"""The page `/metrics` of the gateway and of the admin endpoints."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shared.telemetry.service_registry import metrics_text
from shared.web.bearer_key import BearerKey

FRESH_PER_S = 8.0  # texts made a second, and as many at once, so that people and scrapers get fresh ones


class MetricsPage:
    """Makes the text at most `FRESH_PER_S` times a second, since it takes milliseconds of the event loop.

    Args:
        key: Needed by callers, if it is set.
        clock: Seconds that only grow.
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

    def answer_scrape(self, request: Request) -> Response:
        """The text, made now or, for one of very many callers, a moment ago; 401 without the key."""
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
            self._text = metrics_text(self._registry)
        return Response(self._text, media_type=CONTENT_TYPE_LATEST)
