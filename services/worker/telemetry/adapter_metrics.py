"""Metrics of the adapters in a group's memory."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.domain.scheduling.scheduler import Scheduler

PREFIX = "ryz_worker_adapter_"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class AdapterMetrics:
    """Loads by what came of them, and their times."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.loads = Counter(
            f"{PREFIX}loads", "Loads of adapters, by what came of them.", ["outcome"], registry=registry
        )
        for outcome in ("loaded", "failed"):
            self.loads.labels(outcome)
        self.load_seconds = Histogram(
            f"{PREFIX}load_seconds", "One load of an adapter.", buckets=_SECONDS, registry=registry
        )


class AdapterCollector(Collector):
    """What the pool of adapters holds; nothing while the engine is down.

    Args:
        scheduler: Returns that of the running engine; None while it is down.
    """

    def __init__(self, scheduler: Callable[[], Scheduler | None]) -> None:
        self._scheduler = scheduler
        self._evicted = 0  # of earlier starts of the engine
        self._last: Scheduler | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        scheduler = self._scheduler()
        if scheduler is not self._last and self._last is not None:
            self._evicted += self._last.queues.adapters.pool.num_evicted
        self._last = scheduler
        adapters = scheduler.queues.adapters if scheduler is not None else None
        pool = adapters.pool if adapters is not None else None
        for name, text, value in (
            ("loaded", "Adapters in the group's memory.", len(pool.residents) if pool else 0),
            ("bytes", "Memory of these.", pool.num_bytes if pool else 0),
            ("requests_waiting", "Sequences that wait for theirs.", adapters.num_held if adapters else 0),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        evicted = self._evicted + (pool.num_evicted if pool else 0)
        yield CounterMetricFamily(f"{PREFIX}evictions", "Adapters that made room for others.", value=evicted)
