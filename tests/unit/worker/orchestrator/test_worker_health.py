"""The health monitor's decisions from progress counts, process ends and memory, without real ranks."""

import ctypes
import re
from dataclasses import dataclass, field

import pytest

from services.worker.engine.rank.shared_pages import Progress
from services.worker.orchestrator.health_monitor import HealthMonitor
from services.worker.orchestrator.process_readings import CpuCounts, ProcessReading, ThreadReading
from services.worker.orchestrator.time_limits import StepLimit
from services.worker.rank_protocol.failures import Failure
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan
from services.worker.rank_protocol.progress_page import BEATS, BEGUN, DONE, LINE_WORDS
from services.worker.rank_protocol.rank_messages import RankFailed


@dataclass
class FakeCounts:
    """What the kernel counts of a rank's only thread."""

    at_s: float = 0.0
    run_s: float = 0.0
    wait_s: float = 0.0
    pages_read: int = 0

    def reading(self, state: str) -> ProcessReading:
        thread = ThreadReading(state, round(self.run_s * 1e9), round(self.wait_s * 1e9))
        return ProcessReading(self.at_s, state, {1: thread}, self.pages_read)


@dataclass
class FakeRank:
    rank: int
    state: str = "S"
    memory: int = 100
    host: str = ""
    end: str = "still running"
    share: float = 1.0  # of a core, while it is runnable
    reads: int = 0  # pages that it reads from a disk in an interval
    pid: int = field(init=False)
    counts: "FakeCounts" = field(default_factory=FakeCounts)

    def __post_init__(self) -> None:
        self.pid = 1000 + self.rank

    def read_counts(self) -> ProcessReading | None:
        return self.counts.reading(self.state)

    def read_cpu(self, threads: int) -> CpuCounts:
        return {1: (round(self.counts.run_s * 1e9), round(self.counts.wait_s * 1e9))}

    def memory_bytes(self) -> int:
        return self.memory

    def describe_end(self, wait_s: float = 0.0) -> str:
        return self.end


class World:
    """Fake ranks whose progress counts a test writes, and a monitor over them."""

    def __init__(self, world: int = 2, *, stall_s: float = 1.0, step_s: float = 100.0, pace: int = 0) -> None:
        self.ranks = [FakeRank(rank) for rank in range(world)]
        self.page = [0] * (LINE_WORDS * world)
        self.now, self.sent = 50.0, 1
        self.plan = StepPlan(step_id=7, chunks=[ScheduledChunk(seq_id=1, start=0, token_ids=[1] * 100)])
        self.limit = StepLimit(step_s, pace)
        self.monitor = HealthMonitor(
            self.ranks,  # type: ignore[arg-type]
            self.limit,
            stall_s=stall_s,
            progress=self.page,
            memory_limits={0: 1000},
        )
        self.monitor.begin_watch(self.now)
        self.monitor.begin_step(self.plan)

    def count(self, rank: int, *, beats: int = 0, begun: int = 0, done: int = 0) -> None:
        line = LINE_WORDS * rank
        self.page[line + BEATS] += beats
        self.page[line + BEGUN] += begun
        self.page[line + DONE] += done

    def count_cpu(self, rank: FakeRank, seconds: float) -> None:
        """Counts what its thread did: if runnable, it had a core for `share` of the time and waited else."""
        rank.counts.at_s = self.now
        if rank.state == "R":
            rank.counts.run_s += rank.share * seconds
            rank.counts.wait_s += (1 - rank.share) * seconds
        rank.counts.pages_read += rank.reads

    def wait(self, seconds: float) -> Failure | None:
        """Runs the monitor at its interval for that long; returns the first failure."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.monitor.interval_s
            for rank in self.ranks:
                self.count_cpu(rank, self.monitor.interval_s)
            failure = self.monitor.find_failure(self.now, self.plan, self.sent)
            if failure is not None:
                return failure
        return None


def test_who_has_beaten_least_often_holds_the_others_up() -> None:
    world = World(3)
    for rank, beats in ((0, 40), (1, 39), (2, 40)):
        world.count(rank, beats=beats, begun=1)
    failure = world.wait(5)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("rank_hung", 1)
    assert failure.reason.startswith("rank 1 (pid 1001) made no progress in step 7 for 1.")
    assert failure.reason.endswith("s; it is sleeping")


def test_of_equals_the_one_that_is_stopped_is_to_blame() -> None:
    world = World(3)
    world.ranks[2].state = "T"
    failure = world.wait(5)
    assert failure is not None
    assert (failure.rank, failure.reason.rpartition("it is ")[2]) == (2, "stopped by a signal")


def test_as_long_as_one_rank_makes_progress_no_rank_hangs() -> None:
    world = World()
    for _ in range(30):
        world.count(1, beats=1)
        assert world.wait(0.8) is None
    assert world.wait(2) is not None


def test_large_steps_may_stand_still_for_longer() -> None:
    world = World(pace=2 * 10**9)  # assumes 0.1 s per token: 2 * 100 * 0.1 s
    assert world.wait(20) is None
    assert world.wait(2) is not None


def test_ranks_that_are_through_are_not_to_blame_for_an_answer_that_is_on_its_way() -> None:
    world = World()
    for rank in range(2):
        world.count(rank, beats=9, begun=1, done=1)
    assert world.wait(50) is None
    world.sent = 2  # a second step, which rank 1 does not begin
    world.count(0, beats=3, begun=1)
    failure = world.wait(5)
    assert failure is not None
    assert failure.rank == 1


def test_a_rank_that_was_stopped_between_its_step_and_the_result_is_hung() -> None:
    world = World()
    for rank in range(2):
        world.count(rank, beats=9, begun=1, done=1)
    world.ranks[1].state = "T"  # it sends no result
    assert world.wait(50) is None
    world.ranks[0].state = "T"
    failure = world.wait(5)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("rank_hung", 0)
    assert failure.reason.startswith("rank 0 (pid 1000) made no progress in step 7 for 1.")
    assert failure.reason.endswith("; it is stopped by a signal")


def test_a_rank_that_gets_no_core_is_not_hung_until_the_limit_has_passed_many_times() -> None:
    world = World()
    world.ranks[1].state, world.ranks[1].share = "R", 0.0
    world.count(0, beats=1)
    assert world.wait(13) is None
    failure = world.wait(3)
    assert failure is not None
    assert failure.rank == 1
    assert re.search(r" s, of which 1\d\.\d s do not count, since it waited", failure.reason)
    assert failure.reason.endswith(" for a core or a disk; it is running")


def test_what_a_rank_computed_and_how_long_it_waited_do_not_add_up() -> None:
    world = World(1)
    world.ranks[0].state = "R"
    assert world.wait(0.6) is None
    world.ranks[0].share = 0.0
    assert world.wait(12) is None
    world.ranks[0].share = 1.0
    assert world.wait(0.6) is not None


@pytest.mark.parametrize(("share", "found_s"), [(1.0, 1.0), (0.5, 4.0), (0.3, 11.0)])
def test_a_rank_that_computes_without_progress_hangs_as_soon_as_it_had_the_time_to_make_some(
    share: float, found_s: float
) -> None:
    world = World()
    world.ranks[0].state, world.ranks[0].share = "R", share
    world.count(1, beats=1)
    assert world.wait(0.9 * found_s) is None
    assert world.wait(0.1 * found_s + 0.5) is not None


@pytest.mark.parametrize("state", ["S", "D", "T"])
def test_a_rank_that_sleeps_is_blocked_or_is_stopped_has_no_excuse(state: str) -> None:
    world = World()
    world.ranks[0].state = state
    world.count(1, beats=1)
    world.ranks[1].state, world.ranks[1].share = "R", 0.0  # it waits for rank 0
    assert world.wait(0.9) is None
    failure = world.wait(0.5)
    assert failure is not None
    assert failure.rank == 0


def test_a_stopped_rank_is_found_although_the_rank_that_waits_for_it_gets_no_core() -> None:
    world = World()
    world.ranks[0].state, world.ranks[0].share = "R", 0.0
    world.ranks[1].state = "T"
    failure = world.wait(1.5)
    assert failure is not None
    assert failure.rank == 1


def test_of_equals_none_is_hung_while_one_of_them_waits_for_a_core() -> None:
    world = World()
    world.ranks[1].state, world.ranks[1].share = "R", 0.05
    assert world.wait(10) is None


def test_a_stopped_rank_is_found_by_a_leader_that_is_always_late() -> None:
    world = World()
    world.ranks[1].state = "T"
    began, failure = world.now, None
    while failure is None:
        world.now += 5 * world.monitor.interval_s
        for rank in world.ranks:
            world.count_cpu(rank, 0.5)
        failure = world.monitor.find_failure(world.now, world.plan, world.sent)
    assert world.now - began <= 2.0


def test_a_rank_that_a_disk_serves_is_not_hung() -> None:
    world = World()
    world.ranks[0].state, world.ranks[0].reads = "D", 3
    world.count(1, beats=1)
    assert world.wait(10) is None
    world.ranks[0].reads = 0
    assert world.wait(1.5) is not None


def test_a_starved_step_that_makes_progress_is_never_late() -> None:
    world = World(step_s=3.0)
    for rank in world.ranks:
        rank.state, rank.share = "R", 0.01
    for _ in range(300):
        world.count(0, beats=1)
        world.count(1, beats=1)
        assert world.wait(0.5) is None


def test_a_step_without_a_page_is_late_when_a_starved_rank_had_no_core_for_many_times_its_limit() -> None:
    world = World(stall_s=0.0, step_s=3.0)
    for rank in world.ranks:
        rank.state, rank.share = "R", 0.0
    assert world.wait(38) is None
    assert world.wait(10) is not None


def test_waits_for_a_core_do_not_count_for_the_pace() -> None:
    world = World()
    world.monitor.begin_step(world.plan)
    world.ranks[1].counts.run_s += 0.5
    world.ranks[1].counts.wait_s += 8.0
    world.monitor.step_done(world.plan, 9.0)
    assert world.limit.token_time_s(world.plan) == pytest.approx(2 * 1.0)
    world.monitor.begin_step(world.plan)
    world.ranks[0].counts.run_s += 3.0
    world.ranks[1].counts.wait_s += 9.0  # while rank 0 computed
    world.monitor.step_done(world.plan, 4.0)
    assert world.limit.token_time_s(world.plan) == pytest.approx(2 * 3.0)


def test_a_leader_that_did_not_look_blames_no_rank() -> None:
    world = World()
    assert world.wait(0.3) is None
    for _ in range(3):
        world.now += 3600
        assert world.monitor.find_failure(world.now, world.plan, world.sent) is None


def test_the_step_s_own_limit_is_the_last_resort() -> None:
    world = World(stall_s=0.0, step_s=3.0)
    for _ in range(29):
        world.count(0, beats=1)
        assert world.wait(world.monitor.interval_s) is None
    failure = world.wait(1)
    assert failure == Failure("step_late", "step 7 was not done within 3 s")


def test_each_step_has_its_own_time() -> None:
    world = World(stall_s=0.0, step_s=3.0)
    for _ in range(10):
        assert world.wait(2) is None
        world.monitor.step_done(world.plan, 0.0)
        world.monitor.begin_step(world.plan)


def test_a_rank_beyond_its_memory_is_named() -> None:
    world = World(stall_s=0.0)
    assert world.wait(2) is None
    world.ranks[0].memory, world.ranks[1].memory = 2**30, 2**40  # rank 1 has no limit
    failure = world.wait(2)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("memory", 0)
    assert "takes 1024 MiB" in failure.reason


def test_ends_and_reports() -> None:
    world = World()
    rank = world.ranks[1]
    rank.end = "killed by SIGKILL"
    ended = world.monitor.failure_of_end(rank, "", 5)  # type: ignore[arg-type]
    assert ended == Failure("rank_died", "rank 1 (pid 5) is gone: killed by SIGKILL", 1, outside=True)
    rank.host = "10.0.0.2"
    ended = world.monitor.failure_of_end(rank, "its socket broke", 5)  # type: ignore[arg-type]
    assert ended.reason == "rank 1 (pid 5 on 10.0.0.2) is gone: its socket broke"


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        ("killed by SIGSEGV", True),
        ("killed by SIGABRT", True),
        ("exit code 1", True),
        ("exit code 0", False),
        ("killed by SIGKILL", False),
        ("killed by SIGTERM", False),
        ("still running", False),
    ],
)
def test_a_crash_is_the_engines_own_fault_and_a_signal_from_outside_is_not(end: str, fault: bool) -> None:
    world = World()
    world.ranks[1].end = end
    failure = world.monitor.failure_of_end(world.ranks[1], "", 5)  # type: ignore[arg-type]
    assert failure.fault is fault
    assert failure.outside is (end in {"killed by SIGKILL", "killed by SIGTERM"})


def test_a_rank_killed_while_the_kernel_ends_processes_for_memory_counts_as_short_of_memory() -> None:
    world, kills = World(), [3]
    world.monitor = HealthMonitor(
        world.ranks,  # type: ignore[arg-type]
        StepLimit(1.0, 0),
        count_oom=lambda: kills[0],
    )
    world.ranks[1].end = "killed by SIGKILL"
    assert world.monitor.failure_of_end(world.ranks[1], "", 5).kind == "rank_died"  # type: ignore[arg-type]
    kills[0] += 1
    failure = world.monitor.failure_of_end(world.ranks[1], "", 5)  # type: ignore[arg-type]
    assert (failure.kind, failure.fault, failure.outside) == ("memory", False, False)
    assert "want of memory" in failure.reason


def test_a_rank_that_complains_of_a_neighbour_that_was_killed_is_not_at_fault() -> None:
    world = World()
    world.ranks[1].end = "killed by SIGKILL"
    report = RankFailed(message="connection closed by peer", bug=True)
    reported = world.monitor.failure_of_report(world.ranks[0], report, serving=True)  # type: ignore[arg-type]
    assert (reported.fault, reported.outside) == (False, True)
    world.ranks[0].end = "exit code 1"
    assert not world.monitor.failure_of_end(world.ranks[0], "", 5).fault  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "serving", "expected"),
    [
        (RankFailed(message="m"), True, Failure("rank_failed", "rank 0: m", 0)),
        (RankFailed(message="m"), False, Failure("start_failed", "m", 0)),
        (RankFailed(message="m", bug=True), True, Failure("rank_failed", "rank 0: m", 0, fault=True)),
        (RankFailed(message="m", memory=True), True, Failure("memory", "rank 0: m", 0, fault=True)),
        (RankFailed(message="m", memory=True), False, Failure("memory", "m", 0)),
        (RankFailed(message="m", refused=True), False, Failure("refused", "m", 0)),
    ],
)
def test_reports_of_ranks(report: RankFailed, serving: bool, expected: Failure) -> None:
    world = World()
    assert world.monitor.failure_of_report(world.ranks[0], report, serving=serving) == expected  # type: ignore[arg-type]


def test_a_rank_without_a_page_counts_for_itself() -> None:
    progress = Progress()
    progress.begin_step()
    progress.beat()
    progress.finish_step()
    assert list((ctypes.c_uint64 * 3).from_address(progress.address)) == [3, 1, 1]


def test_a_late_step_names_the_rank_that_is_behind() -> None:
    world = World(stall_s=100.0, step_s=3.0)
    world.ranks[1].state = "T"
    failure = world.wait(5)
    assert failure is not None
    assert (failure.kind, failure.rank) == ("step_late", 1)
    assert failure.reason == (
        "step 7 was not done within 3 s: rank 1 (pid 1001) is behind; it is stopped by a signal"
    )
