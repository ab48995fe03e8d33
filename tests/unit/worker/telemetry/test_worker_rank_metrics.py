"""The metrics of ranks, as a scrape shows them."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.worker.leader.step_log import StepLog
from services.worker.rank_protocol.step_times import KINDS, PartsOfStep, private_times
from services.worker.telemetry.rank_metrics import RankCollector

SECOND = 1_000_000_000


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """All samples, by name and values of labels in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_each_rank_has_its_times_by_kind_which_sum_to_its_time_and_its_memory() -> None:
    log, (times, writers), registry = StepLog(), private_times(2), CollectorRegistry()
    rows = [{"rank": 0, "memory_bytes": 5000}, {"rank": 1, "memory_bytes": 0}]
    registry.register(RankCollector(log, lambda: rows, lambda: 20 * SECOND))
    assert scraped(registry) == {("ryz_worker_rank_memory_bytes", "0"): 5000}  # no engine has started
    log.begin_start(times)
    parts = PartsOfStep(*[SECOND * part for part in (4, 3, 1, 0, 0, 1)])
    writers[0].write_step(1, 0, 10 * SECOND, parts, 2 * SECOND)
    writers[0].count_step(0, 10 * SECOND, parts, 2 * SECOND)
    writers[1].begin_step(1, 17 * SECOND)
    seen = scraped(registry)
    prefix = "ryz_worker_rank_"
    kinds = {kind: seen[(f"{prefix}seconds_total", kind, "0")] for kind in (*KINDS, "other", "idle")}
    assert kinds == {
        "linears": 4, "attention": 3, "collectives": 1, "sampling": 0, "masks": 0, "kv_copy": 1,
        "other": 1, "idle": 2,
    }  # fmt: skip
    assert seen[(f"{prefix}step_seconds_sum", "0")] == 10
    assert seen[(f"{prefix}step_seconds_count", "0")] == 1
    assert seen[(f"{prefix}step_seconds_bucket", "5.0", "0")] == 0
    assert seen[(f"{prefix}step_seconds_bucket", "10.0", "0")] == 1
    assert seen[(f"{prefix}running_step_seconds", "0")] == 0
    assert seen[(f"{prefix}running_step_seconds", "1")] == 3
    assert seen[(f"{prefix}memory_bytes", "0")] == 5000
    assert (f"{prefix}memory_bytes", "1") not in seen  # on another host
