"""The metrics of the gRPC door, under `ryz_gateway_grpc_...`.

Its requests count in the metrics of the HTTP routes as well, which answer them. Methods and status codes come
from short fixed lists.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class GrpcMetrics:
    """The counters of one door."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "ryz_gateway_grpc_calls",
            "gRPC calls by method and status.",
            ["method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "ryz_gateway_grpc_call_seconds",
            "From the first message of a gRPC call to its status.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.open_streams = Gauge(
            "ryz_gateway_grpc_open_streams", "Open calls of ModelStreamInfer.", registry=registry
        )
        self.stream_requests = Counter(
            "ryz_gateway_grpc_stream_requests", "Requests that came on such streams.", registry=registry
        )
        self.slow_readers = Counter(
            "ryz_gateway_grpc_slow_readers",
            "Such streams that were ended, as they were not read.",
            registry=registry,
        )

        self._call_children: dict[tuple[str, str], Counter] = {}  # `labels()` costs more than counting
        self._second_children: dict[str, Histogram] = {}

    def count_call(self, method: str, status: str, seconds: float) -> None:
        """Counts a call that has ended."""
        counter = self._call_children.get((method, status))
        if counter is None:
            counter = self._call_children[method, status] = self._calls.labels(method, status)
        counter.inc()
        histogram = self._second_children.get(method)
        if histogram is None:
            histogram = self._second_children[method] = self._seconds.labels(method)
        histogram.observe(seconds)
