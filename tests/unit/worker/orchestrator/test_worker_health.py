"""The health monitor's decisions from progress counts, process ends and memory, without real ranks."""

from dataclasses import dataclass, field

import pytest

from services.worker.engine.rank.rank_progress import Progress
from services.worker.orchestrator.health_monitor import HealthMonitor
from services.worker.orchestrator.step_limit import StepLimit
from services.worker.rank_protocol.failures import Failure
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan
from services.worker.rank_protocol.progress_page import BEATS, BEGUN, DONE, LINE_WORDS
from services.worker.rank_protocol.rank_messages import RankFailed


@dataclass
class FakeRank:
    rank: int
    state: str = "S"
    memory: int = 100
    host: str = ""
    end: str = "still running"
    pid: int = field(init=False)

    def __post_init__(self) -> None:
        self.pid = 1000 + self.rank

    def run_state(self) -> str:
        return self.state

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
        self.plan = StepPlan(step_id=7, slices=[ScheduledChunk(seq_id=1, start=0, token_ids=[1] * 100)])
        self.monitor = HealthMonitor(
            self.ranks,  # type: ignore[arg-type]
            StepLimit(step_s, pace),
            stall_s=stall_s,
            progress=self.page,
            memory_limits={0: 1000},
        )
        self.monitor.begin_step(self.now)

    def count(self, rank: int, *, beats: int = 0, begun: int = 0, done: int = 0) -> None:
        line = LINE_WORDS * rank
        self.page[line + BEATS] += beats
        self.page[line + BEGUN] += begun
        self.page[line + DONE] += done

    def wait(self, seconds: float) -> Failure | None:
        """Runs the monitor at its interval for that long; returns the first failure."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.monitor.interval_s
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
    told = RankFailed(message="connection closed by peer", bug=True)
    reported = world.monitor.failure_of_report(world.ranks[0], told, serving=True)  # type: ignore[arg-type]
    assert (reported.fault, reported.outside) == (False, True)
    world.ranks[0].end = "exit code 1"
    assert not world.monitor.failure_of_end(world.ranks[0], "", 5).fault  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "serving", "expected"),
    [
        (RankFailed(message="m"), True, Failure("rank_failed", "rank 0: m", 0)),
        (RankFailed(message="m"), False, Failure("start_failed", "m", 0)),
        (RankFailed(message="m", bug=True), True, Failure("rank_failed", "rank 0: m", 0, fault=True)),
        (RankFailed(message="m", memory=True), True, Failure("memory", "rank 0: m", 0, fault=True)),
        (RankFailed(message="m", memory=True), False, Failure("memory", "m", 0)),
        (RankFailed(message="m", refused=True), False, Failure("refused", "m", 0)),
    ],
)
def test_reports_of_ranks(told: RankFailed, serving: bool, expected: Failure) -> None:
    world = World()
    assert world.monitor.failure_of_report(world.ranks[0], told, serving=serving) == expected  # type: ignore[arg-type]


def test_a_rank_without_a_page_counts_for_itself() -> None:
    progress = Progress()
    progress.begin_step()
    progress.beat()
    progress.finish_step()
    assert list(progress._words[:3]) == [3, 1, 1]
