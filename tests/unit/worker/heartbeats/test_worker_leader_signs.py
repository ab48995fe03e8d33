"""Frozen, starved or hung: what samples of a leader's threads prove. No test waits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.leader.heartbeats.leader_signs import (
    FROZEN_S,
    STARVED_MOST_S,
    LeaderSample,
    LeaderSigns,
    ThreadSample,
)
from services.worker.leader.heartbeats.leader_watch import ProcessWatch, read_leader
from shared.host.cpu_pressure import CpuPressure
from tests.kits.waiting import until

STALE_S = 1.0
POLL_S = 0.025
NS = 1_000_000_000


class Leader:
    """A leader whose loop made its last description at 0; the test says what its threads do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.signs = LeaderSigns(STALE_S)
        self.threads: dict[int, list[float]] = {1: [0.0, 0.0, 0.0]}  # seconds on a core and without, slices

    def live(
        self, seconds: float, state: str = "S", tid: int = 1, *, cpu: float = 0.0, wait: float = 0.0
    ) -> str:
        """Passes that time with a look every 25 ms; returns the last verdict.

        Args:
            seconds: How long.
            state: Of that thread; the others sleep.
            tid: The thread.
            cpu: Share of the time that it has a core.
            wait: Share of the time in waits that have ended by the look.
        """
        self.threads.setdefault(tid, [0.0, 0.0, 0.0])
        verdict = "none"
        for _ in range(round(seconds / POLL_S)):
            self.now += POLL_S
            thread = self.threads[tid]
            thread[0] += POLL_S * cpu
            thread[1] += POLL_S * wait
            thread[2] += cpu > 0
            verdict = self.assess(state, tid)
        return verdict

    def assess(self, state: str, tid: int = 1) -> str:
        samples = {
            one: ThreadSample(
                state if one == tid else "S", round(cpu * NS), round(waited * NS), int(timeslices)
            )
            for one, (cpu, waited, timeslices) in self.threads.items()
        }
        return self.signs.judge(LeaderSample(samples[1], samples), self.now, self.now).leader


def test_a_loop_that_waits_for_what_does_not_come_hangs_after_the_limit() -> None:
    leader = Leader()
    assert leader.live(STALE_S - POLL_S) == "running"
    assert leader.live(2 * POLL_S) == "hung"


def test_a_loop_that_computes_without_end_hangs_after_the_limit() -> None:
    leader = Leader()
    assert leader.live(STALE_S - POLL_S, "R", cpu=1.0) == "running"
    assert leader.live(2 * POLL_S, "R", cpu=1.0) == "hung"


def test_a_loop_that_has_no_core_does_not_hang() -> None:
    """It is ready all the time and never runs."""
    leader = Leader()
    assert leader.live(20.0, "R") == "running"


def test_a_loop_that_gets_a_tenth_of_a_core_has_ten_times_as_long() -> None:
    leader = Leader()
    assert leader.live(5.0, "R", cpu=0.1, wait=0.9) == "running"
    assert leader.live(6.0, "R", cpu=0.1, wait=0.9) == "hung"


def test_a_loop_that_waits_for_a_lock_of_a_starved_thread_does_not_hang() -> None:
    leader = Leader()
    assert leader.live(5.0, "R", tid=2, cpu=0.1, wait=0.9) == "running"


def test_what_an_observer_without_a_core_has_not_seen_proves_nothing() -> None:
    """Its first sample comes 5 s after the last description, when both may have waited for a core."""
    leader = Leader()
    leader.now = 5.0
    assert leader.assess("S") == "running"
    assert leader.live(0.75 * STALE_S - POLL_S) == "running"
    assert leader.live(2 * POLL_S) == "hung"


def test_a_loop_that_waits_for_the_disk_does_not_hang() -> None:
    assert Leader().live(5.0, "D") == "running"


def test_what_is_starved_for_ever_is_given_up_in_the_end() -> None:
    leader = Leader()
    assert leader.live(STARVED_MOST_S, "R") == "running"
    assert leader.live(2 * STALE_S, "R") == "hung"


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_leader_is_frozen_after_a_moment_and_has_its_time_again_when_it_goes_on(state: str) -> None:
    leader = Leader()
    assert leader.live(FROZEN_S, state) == "running"
    assert leader.live(2 * POLL_S, state) == "frozen"
    assert leader.live(5.0, state) == "frozen"
    assert leader.live(STALE_S) == "running"  # though its last description is seven seconds old
    assert leader.live(3 * POLL_S) == "hung"


def test_a_stop_of_a_moment_as_by_a_debugger_is_no_freeze() -> None:
    leader = Leader()
    for _ in range(10):
        assert leader.live(FROZEN_S / 2, "t") == "running"
        assert leader.live(POLL_S) == "running"


def test_a_new_description_ends_every_doubt() -> None:
    leader = Leader()
    leader.live(STALE_S, "T")
    leader.signs.clear()
    leader.now = 0.0
    assert leader.live(FROZEN_S, "T") == "running"


def test_a_leader_that_is_gone_has_ended() -> None:
    assert LeaderSigns(STALE_S).judge(None, 0.01, 1.0).leader == "ended"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=80))
def test_only_time_without_a_core_is_excused(shares: list[tuple[float, float]]) -> None:
    leader = Leader()
    for cpu, wait in shares:
        verdict = leader.live(4 * POLL_S, "S", cpu=cpu * (1 - wait), wait=wait)
        waited_s = leader.threads[1][1]
        if verdict == "hung":
            assert leader.now > STALE_S
        if leader.now - waited_s > STALE_S + POLL_S:
            assert verdict == "hung"


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


async def test_real_processes_are_read(sleeper: "subprocess.Popen[bytes]") -> None:
    def state() -> str:
        sample = read_leader(sleeper.pid, with_threads=False)
        return sample.main.state if sample is not None else "gone"

    await until(lambda: state() == "S")
    sleeper.send_signal(signal.SIGSTOP)
    await until(lambda: state() == "T")
    sleeper.kill()
    await until(lambda: state() == "gone")  # a zombie, as long as it was not waited for


def test_threads_of_this_process_have_times() -> None:
    sample = read_leader(os.getpid(), with_threads=True)
    assert sample is not None
    assert sample.main is sample.threads[os.getpid()]
    assert sample.main.cpu_ns > 0
    assert sample.main.timeslices > 0


def test_new_descriptions_prove_enough() -> None:
    """The process id belongs to no process: it is not looked at, but for being this one's parent."""
    watch = ProcessWatch(os.getppid(), doubt_s=0.05, stale_s=1.0)
    assert watch.assess(0.01, 5.0).leader == "running"
    watch.note_end()
    assert watch.assess(0.01, 5.1).leader == "ended"
    assert ProcessWatch(2**22 + 1, doubt_s=0.05, stale_s=1.0).assess(0.01, 5.0).leader == "ended"


def test_the_pressure_is_that_of_the_last_half_second(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    pressure = CpuPressure(file)
    assert pressure.read(0.0) == 0.0  # there is no such file
    shares = []
    pressure = CpuPressure(file)
    for step in range(20):
        waited_us = max(0, step - 10) * 80_000  # from the tenth on 80 ms of each 100
        file.write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={waited_us}\nfull total=9\n")
        shares.append(pressure.read(step * 0.1))
    assert shares[:11] == [0.0] * 11
    assert shares[-1] == pytest.approx(0.8)
    assert sorted(shares) == shares
