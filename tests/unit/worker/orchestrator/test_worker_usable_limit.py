"""The time limit of a start: what counts of the time in which processes load."""

from services.worker.orchestrator.process_readings import ProcessReading, ThreadReading
from services.worker.orchestrator.time_limits import UsableLimit


def reading(
    at_s: float, state: str, *, run_s: float = 0.0, wait_s: float = 0.0, pages: int = 0
) -> ProcessReading:
    thread = ThreadReading(state, round(run_s * 1e9), round(wait_s * 1e9))
    return ProcessReading(at_s, state, {5: thread}, pages)


def late_after_s(share: float = 1.0, state: str = "R", *, pages_per_s: float = 0.0) -> float:
    """When a start with a limit of 10 s is late whose only process has that share of a core."""
    watch, now = UsableLimit(10.0, 0.0), 0.0
    while now < 1000:
        now += watch.interval_s
        counts = reading(
            now, state, run_s=share * now, wait_s=(1 - share) * now, pages=round(pages_per_s * now)
        )
        if watch.is_late(now, {5: counts}):
            break
    return now


def test_a_start_that_gets_its_cores_has_the_limit_itself() -> None:
    assert 9.9 < late_after_s() < 10.6


def test_time_without_a_core_counts_little() -> None:
    assert 36 < late_after_s(0.5) < 42
    assert 130 < late_after_s(0.0) < 151


def test_time_in_which_a_disk_gives_the_weights_counts_little() -> None:
    assert 130 < late_after_s(state="D", pages_per_s=100) < 151
    assert late_after_s(state="D") < 10.6


def test_a_stopped_process_gets_no_more_than_the_limit() -> None:
    assert late_after_s(0.0, "T") < 10.6


def test_the_slowest_of_several_decides() -> None:
    watch = UsableLimit(10.0, 0.0)
    for step in range(1, 60):
        now = step * watch.interval_s
        both = {5: reading(now, "S"), 6: reading(now, "R", wait_s=now)}
        assert not watch.is_late(now, both)
    alone = UsableLimit(10.0, 0.0)
    assert any(alone.is_late(step * 0.5, {5: reading(step * 0.5, "S")}) for step in range(60))


def test_ranks_of_other_hosts_have_wall_time() -> None:
    watch = UsableLimit(10.0, 0.0)
    assert [watch.is_late(step * 0.5, {}) for step in (1, 10)] == [False, False]
    assert any(watch.is_late(step * 0.5, {}) for step in range(11, 40))
