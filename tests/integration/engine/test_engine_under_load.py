"""Ranks beside busy loops: a slow one is no hung one, and a hung one is found."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.worker.orchestrator import rank_engine
from services.worker.orchestrator.health_monitor import HealthMonitor
from services.worker.orchestrator.process_group_manager import ProcessGroupManager
from services.worker.orchestrator.process_readings import read_process
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, Failure
from tests.kits.engine.plans import num_steps
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate

BUSY_CORE = max(os.sched_getaffinity(0))
MOST_S = 120  # a loop ends by itself then
LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@contextlib.contextmanager
def busy_core(loops: int, pids: Iterable[int]) -> Iterator[None]:
    """Binds those processes to one core, which as many busy loops of normal priority use as well."""
    core = BUSY_CORE
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(loops):
            started.append(subprocess.Popen([sys.executable, "-S", "-c", LOOP, str(MOST_S)]))
        for pid in [*pids, *(process.pid for process in started)]:
            bind_process(pid, {core})
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def bind_process(pid: int, cores: Iterable[int]) -> None:
    """Binds all threads of a process to those cores."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(tid), cores)


pytestmark = pytest.mark.alone  # it makes the load whose effect is measured
PROMPT = [5, 9, 2, 77, 140]
STALL_S = 0.25
# a rank that gets no core is given up after 15 times as long; the rest is for a leader that gets none either
SOON_S = 15 * STALL_S + 10.0
HANGING = (sys.executable, "-m", "tests.kits.engine.hanging_rank")


@asynccontextmanager
async def running(
    model: Path, nice: int = 10, command: tuple[str, ...] = HANGING, **changes: Any
) -> AsyncIterator[tuple[RankEngine, EngineInfo]]:
    options = {"threads": 1, "kv_cache_tokens": 8192, "stall_timeout_s": STALL_S} | changes
    processes = ProcessGroupManager(command, nice=nice)
    engine = RankEngine(rank_options(model=model, tensor_parallel=2, **options), processes)
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()
        await engine.stop()


async def endless(engine: RankEngine) -> None:
    for number in range(100_000):
        await generate(engine, [PROMPT], 100, [GREEDY], first_id=1000 + number)


async def found(engine: RankEngine, pid: int, how: signal.Signals, limit_s: float) -> tuple[Failure, float]:
    """Sends a signal amid a generation; returns the failure and after how many seconds it was found."""
    generation = asyncio.create_task(endless(engine))
    before = num_steps(engine)
    async with asyncio.timeout(60):
        while num_steps(engine) < before + 3:  # noqa: ASYNC110 (polls other processes)
            await asyncio.sleep(0.01)
    began = time.monotonic()
    os.kill(pid, how)
    with pytest.raises(EngineFailed) as failed:
        await asyncio.wait_for(generation, limit_s)
    return failed.value.failure, time.monotonic() - began


async def test_ranks_that_get_a_hundredth_of_a_core_are_slow_and_not_hung(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitors: list[HealthMonitor] = []

    def watched(*ranks: Any, **options: Any) -> HealthMonitor:
        monitors.append(HealthMonitor(*ranks, **options))
        return monitors[-1]

    monkeypatch.setattr(rank_engine, "HealthMonitor", watched)
    async with running(model, nice=19) as (engine, info):
        expected = await generate(engine, [PROMPT], 4, [GREEDY])
        with busy_core(16, [rank.pid for rank in info.ranks]):
            silent_s = 0.0  # the longest time without progress that was seen
            async with asyncio.timeout(90):
                while silent_s < 1.5 * STALL_S:  # else the load has shown nothing yet
                    generation = asyncio.create_task(generate(engine, [PROMPT], 4, [GREEDY], first_id=500))
                    while not generation.done():
                        await asyncio.wait({generation}, timeout=0.05)
                        silent_s = max(silent_s, monitors[-1].silent_s)
                    assert await generation == expected


async def test_a_start_is_not_late_for_the_time_in_which_others_have_the_core(model: Path) -> None:
    async with running(model) as (_, info):
        counts = [read_process(rank.pid) for rank in info.ranks]
    cpu_s = max(thread.run_ns / 1e9 for one in counts if one for thread in one.threads.values())
    limit_s = 2 * cpu_s
    with busy_core(3, []):
        began = time.monotonic()
        command = ("taskset", "-c", str(BUSY_CORE), *HANGING)
        async with running(model, command=command, engine_start_timeout_s=limit_s) as (_, info):
            assert len(info.ranks) == 2
            assert time.monotonic() - began > limit_s, "else the load was too small to show anything"


@pytest.mark.parametrize(
    ("loops", "how", "state"),
    [
        (6, signal.SIGSTOP, "stopped by a signal"),
        (6, signal.SIGUSR2, "sleeping"),
        (6, signal.SIGUSR1, "running"),
        (0, signal.SIGUSR2, "sleeping"),
        (0, signal.SIGUSR1, "running"),
    ],
)
async def test_a_hung_rank_is_found_beside_busy_loops(
    model: Path, loops: int, how: signal.Signals, state: str
) -> None:
    async with running(model) as (engine, info):
        pids = [rank.pid for rank in info.ranks]
        with busy_core(loops, pids if loops else []):
            failure, after_s = await found(engine, pids[1], how, 60)
        assert (failure.kind, failure.rank) == ("rank_hung", 1), failure
        assert failure.reason.endswith(f"; it is {state}")
        assert after_s < SOON_S
