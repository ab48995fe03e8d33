"""Metrics of a group's ranks, computed at each scrape from the ranks' shared memory and from /proc.

Nothing is counted while a step is handled. The label `rank` has as many values as the group has ranks.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.leader.step_log import StepLog
from services.worker.metrics import PREFIX
from services.worker.orchestrator.devices.faults import faults_of
from services.worker.rank_protocol.step_times import STEP_BUCKETS_S, by_kind

_BOUNDS = [*map(str, STEP_BUCKETS_S), "+Inf"]


class RankCollector(Collector):
    """What each rank spends its time on, and its memory.

    A rank that is slower than the others waits less in collectives than they do.

    Args:
        status: Returns a row for each rank, see `Engine.status`.
        clock: Nanoseconds, as the ranks count them.
    """

    def __init__(
        self,
        log: StepLog,
        status: Callable[[], Sequence[Mapping[str, object]]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._log = log
        self._status = status
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        steps = HistogramMetricFamily(PREFIX + "rank_step_seconds", "One step on one rank.", labels=["rank"])
        seconds = CounterMetricFamily(
            PREFIX + "rank_seconds",
            "Time of a rank by what it was spent on; other: bookkeeping and operations on rows.",
            labels=["rank", "kind"],
        )
        running = GaugeMetricFamily(
            PREFIX + "rank_running_step_seconds",
            "How long the step that a rank computes now has taken so far, 0 without one.",
            labels=["rank"],
        )
        times = self._log.times
        for rank in range(self._log.world):
            totals, name = self._log.totals(rank), str(rank)
            counts = accumulate(totals.buckets)
            steps.add_metric([name], list(zip(_BOUNDS, counts, strict=True)), totals.step_ns / 1e9)
            for kind, spent_ns in by_kind(totals).items():
                seconds.add_metric([name, kind], spent_ns / 1e9)
            now = None if times is None else times.read_running(rank)
            running.add_metric([name], max(0, self._clock() - now.since_ns) / 1e9 if now else 0.0)
        memory = GaugeMetricFamily(
            PREFIX + "rank_memory_bytes",
            "Resident memory of a rank of this host, shared memory included.",
            labels=["rank"],
        )
        faults = GaugeMetricFamily(
            PREFIX + "rank_device_fault",
            "1 while the device of a rank has this fault (docs/failures.md).",
            labels=["rank", "kind"],
        )
        for row in self._status():
            for kind in faults_of(row):
                faults.add_metric([str(row["rank"]), kind], 1)
            used = row.get("memory_bytes")
            if isinstance(used, int) and used:
                memory.add_metric([str(row["rank"])], used)
        yield from (steps, seconds, running, memory, faults)
