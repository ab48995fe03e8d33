"""The gateway's metrics, under `ryz_gateway_...`.

Label values come from short fixed lists (routes, HTTP statuses), so the number of series is bounded. Children
are looked up once, because `labels()` costs more than counting.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REFUSED_KEYS = ("invalid_api_key", "key_expired", "invalid_token", "slowed", "other")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _CountedIn:
    """Counts in a gauge those that are inside its block; `track_inprogress` makes an object for each."""

    __slots__ = ("_gauge",)

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge

    def __enter__(self) -> None:
        self._gauge.inc()

    def __exit__(self, *_: object) -> None:
        self._gauge.dec()


class GatewayMetrics:
    """The counters of one gateway.

    Attributes:
        open_stream: A block in which a streamed answer is sent; one object for all of them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._requests = counter(
            "ryz_gateway_requests", "HTTP requests by route and status.", ["route", "status"]
        )
        self._seconds = histogram(
            "ryz_gateway_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route"],
            buckets=_SECONDS,
        )
        self._first_token = histogram(
            "ryz_gateway_time_to_first_token_seconds",
            "From a request to its first text, streamed answers only.",
            ["route"],
            buckets=_SECONDS,
        )
        self.open_stream = _CountedIn(gauge("ryz_gateway_open_streams", "Streamed answers under way."))
        self.parked_streams = gauge(
            "ryz_gateway_parked_streams", "Streams without a client that may come back to them."
        )
        self.attached = counter("ryz_gateway_attached_streams", "Streams that were resumed by their clients.")
        self.repeated = counter(
            "ryz_gateway_repeated_calls",
            "Calls that got the answer of an earlier one with the same Idempotency-Key.",
        )
        self.expired_streams = counter(
            "ryz_gateway_expired_streams", "Parked streams whose client did not come back."
        )
        self.slow_readers = counter(
            "ryz_gateway_slow_readers", "Answers cut off because they were not read or took too much memory."
        )
        self.realtime_sockets = gauge("ryz_gateway_realtime_sockets", "Open WebSockets of /v1/realtime.")
        self.realtime_slow = counter(
            "ryz_gateway_realtime_slow",
            "Messages of /v1/realtime for which a client took a second or longer to read.",
        )
        self.cancelled = counter("ryz_gateway_cancelled", "Requests whose caller left before the end.")
        self._failed_streams = counter(
            "ryz_gateway_failed_streams", "Streams that ended with an error event.", ["code"]
        )
        self.limits_local = gauge(
            "ryz_gateway_limits_local",
            "1 while this gateway counts limits of tenants and keys alone, since their store is away.",
        )
        self.request_bytes = counter("ryz_gateway_request_bytes", "Bytes of bodies read.")
        self.response_bytes = counter("ryz_gateway_response_bytes", "Bytes of bodies sent.")
        self.unknown_fields = counter(
            "ryz_gateway_unknown_fields", "Unknown fields of bodies that were accepted and not used."
        )
        self.left_out = counter(
            "ryz_gateway_left_out",
            "Known fields and tools that are not served, and blocks that change with each request.",
            ["kind"],
        )
        self.revoked_streams = counter(
            "ryz_gateway_revoked_streams", "Answers that were ended with the key or tenant they were for."
        )
        self._refused_keys = counter(
            "ryz_gateway_refused_keys", "Calls that were refused for their API key or token.", ["reason"]
        )
        self.accounts_age = gauge(
            "ryz_gateway_accounts_age_seconds",
            "Since the KV state service last confirmed the copy of tenants and keys, or since the start.",
        )
        for reason in REFUSED_KEYS:
            self._refused_keys.labels(reason)
        for code in ("group_lost", "internal"):  # alerts measure their growth, from 0 on
            self._failed_streams.labels(code)
        self._request_children: dict[tuple[str, int], Counter] = {}
        self._second_children: dict[str, Histogram] = {}
        self._token_children: dict[str, Histogram] = {}

    def count_answer(self, route: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        counter = self._request_children.get((route, status))
        if counter is None:
            self._requests.labels(route, "400")  # alerts measure the growth of wrong requests, from 0 on
            counter = self._request_children[route, status] = self._requests.labels(route, str(status))
        counter.inc()
        histogram = self._second_children.get(route)
        if histogram is None:
            histogram = self._second_children[route] = self._seconds.labels(route)
        histogram.observe(seconds)

    def count_refused_key(self, reason: str) -> None:
        """Counts a call that was refused for its key; reasons are those of `REFUSED_KEYS`."""
        self._refused_keys.labels(reason if reason in REFUSED_KEYS else "other").inc()

    def count_failed_stream(self, code: str) -> None:
        """Counts a stream that ended with an error event; codes are those of the error family."""
        self._failed_streams.labels(code).inc()

    def observe_first_token(self, route: str, seconds: float) -> None:
        """Records when the first text of a stream was sent."""
        histogram = self._token_children.get(route)
        if histogram is None:
            histogram = self._token_children[route] = self._first_token.labels(route)
        histogram.observe(seconds)
