"""Shows how this replica sees its Redis servers: whether they answer, how fast, and their memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.telemetry.histograms import TokenHistogram


class RedisMemory(NamedTuple):
    """Memory of a Redis, in bytes, as it last said.

    Attributes:
        limit: That it may use; 0: no limit.
    """

    used: int
    limit: int


class MeasuredRedis(NamedTuple):
    """One use of Redis.

    Attributes:
        store: `sessions` or `kv`; both may be on one server.
        exchanges: Seconds that it took to answer.
        is_away: Whether its circuit is open.
    """

    store: str
    exchanges: TokenHistogram
    is_away: Callable[[], bool]
    memory: Callable[[], RedisMemory]


class RedisCollector(Collector):
    """Exports `ryz_kvstate_redis_...{store=...}`."""

    def __init__(self, measured: Sequence[MeasuredRedis]) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        labels = ["store"]
        up = GaugeMetricFamily(
            "ryz_kvstate_redis_up", "1 while this Redis answers, 0 while it is away.", labels=labels
        )
        used = GaugeMetricFamily("ryz_kvstate_redis_memory_bytes", "Memory that Redis uses.", labels=labels)
        limit = GaugeMetricFamily(
            "ryz_kvstate_redis_memory_limit_bytes", "Memory that Redis may use; 0: no limit.", labels=labels
        )
        seconds = HistogramMetricFamily(
            "ryz_kvstate_redis_seconds", "Time of one exchange with Redis, as kvstate sees it.", labels=labels
        )
        for one in self._measured:
            memory = one.memory()
            up.add_metric([one.store], int(not one.is_away()))
            used.add_metric([one.store], memory.used)
            limit.add_metric([one.store], memory.limit)
            seconds.add_metric([one.store], one.exchanges.rows(), one.exchanges.sum)
        yield from (up, used, limit, seconds)
