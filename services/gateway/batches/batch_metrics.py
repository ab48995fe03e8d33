"""The metrics of batches, under `ryz_gateway_batch_...`."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class BatchMetrics:
    """Counts requests of batches.

    Args:
        registry: Of the service.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lines = Counter(
            "ryz_gateway_batch_lines",
            "Requests of batches that this gateway has run to their ends: completed or failed.",
            ["outcome"],
            registry=registry,
        )
        self._waiting = Gauge(
            "ryz_gateway_batch_lines_waiting",
            "Requests without a result in all batches, as every gateway tells them.",
            registry=registry,
        )
        self._running = Gauge(
            "ryz_gateway_batch_lines_running", "Requests of batches that run here.", registry=registry
        )
        self._open = Gauge(
            "ryz_gateway_batches_open",
            "Batches that have not ended, as every gateway tells them.",
            registry=registry,
        )

    def count_line(self, *, ok: bool) -> None:
        """A request has its result."""
        self._lines.labels("completed" if ok else "failed").inc()

    def show(
        self, waiting: Callable[[], float], running: Callable[[], float], open_: Callable[[], float]
    ) -> None:
        """Sets where the gauges read."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)
        self._open.set_function(open_)
