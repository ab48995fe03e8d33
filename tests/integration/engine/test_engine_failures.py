"""Ranks that hang, run out of memory or lose their leader: error, detection time and cleanup."""

import asyncio
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.worker.orchestrator import process_group_manager
from services.worker.orchestrator.fork_server_client import ForkServerClient
from services.worker.orchestrator.process_group_manager import ProcessGroupManager
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.orchestrator.resource_allocator import ResourceAllocator
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.failures import EngineFailed, Failure
from tests.kits.engine.plans import num_steps
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.options import kv_store

PROMPT = [5, 9, 2, 77, 140]
STALL_S = 0.5
SOON_S = PATIENCE_S  # far below the time limit of a step here, far above the time on a busy machine


@asynccontextmanager
async def running(
    model: Path, world: int, processes: ProcessGroupManager | None = None, **changes: Any
) -> AsyncIterator[tuple[RankEngine, EngineInfo]]:
    """An engine with one thread per rank; asserts that stopping it releases all shared files and mappings."""
    limits = {"stall_timeout_s": STALL_S, "step_timeout_s": 10 * PATIENCE_S}
    options = {"threads": 1, "kv_cache_tokens": 8192} | limits | changes
    before = shared_files()
    engine = RankEngine(rank_options(model=model, tensor_parallel=world, **options), processes)
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()
        await engine.stop()
    assert shared_files() == before


def shared_files() -> tuple[int, int]:
    """Counts the ranks' shared files that this process has open and those that it has mapped."""
    opened = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            opened += "memfd:ryz-" in os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return opened, Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:ryz-")


async def amid_a_generation(engine: RankEngine) -> "asyncio.Task[list[list[int]]]":
    """A running generation that has completed some steps."""
    before = num_steps(engine)
    running = asyncio.create_task(generate(engine, [PROMPT], 480, [GREEDY], first_id=1000 + before))
    await until(lambda: num_steps(engine) > before + 5)
    return running


async def one_after_another(engine: RankEngine) -> list[list[int]]:
    """Generates without end, because the engine checks memory only now and then."""
    for first_id in itertools.count(5000, 10):
        await generate(engine, [PROMPT], 480, [GREEDY], first_id=first_id)
    raise AssertionError


async def end_of(generation: "asyncio.Task[list[list[int]]]") -> Failure:
    with pytest.raises(EngineFailed) as failed:
        await asyncio.wait_for(generation, SOON_S)
    return failed.value.failure


def address_space(pid: int) -> int:
    """The virtual memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def gone(pid: int) -> bool:
    """Whether a process has ended; zombies count as ended, since the reaper of orphans may be late."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("world", "victim", "changes"),
    [
        (2, 1, {}),
        (2, 0, {}),
        (1, 0, {}),
        (2, 1, {"kernels": "plain"}),
        (2, 1, {"collectives": "gloo"}),
        (2, 0, {"collectives": "gloo", "kernels": "plain"}),
    ],
)
async def test_a_rank_that_stands_still_is_named_and_ended(
    model: Path, world: int, victim: int, changes: dict[str, Any]
) -> None:
    async with running(model, world, **changes) as (engine, info):
        pid = info.ranks[victim].pid
        generation = await amid_a_generation(engine)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        failure = await end_of(generation)
        assert STALL_S * 0.5 < time.monotonic() - began < SOON_S
        assert (failure.kind, failure.rank) == ("rank_hung", victim)
        assert failure.reason.startswith(f"rank {victim} (pid {pid}) made no progress in step ")
        assert failure.reason.endswith("; it is stopped by a signal")
        await until(lambda: all(gone(rank.pid) for rank in info.ranks))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # a late SIGCONT must change nothing
        await engine.stop()
        again = await engine.start()
        assert pid not in {rank.pid for rank in again.ranks}
        assert len((await generate(engine, [PROMPT], 5, [GREEDY]))[0]) == 5


async def test_a_rank_that_was_stopped_between_steps_is_found_by_the_next_one(model: Path) -> None:
    async with running(model, 2) as (engine, info):
        await generate(engine, [PROMPT], 3, [GREEDY])
        os.kill(info.ranks[1].pid, signal.SIGSTOP)
        await asyncio.sleep(3 * STALL_S)
        assert {row["state"] for row in engine.status()} == {"ready"}, "no request waits for it"
        generation = asyncio.create_task(generate(engine, [PROMPT], 3, [GREEDY], first_id=9))
        failure = await end_of(generation)
        assert (failure.kind, failure.rank) == ("rank_hung", 1)


async def test_a_short_pause_is_no_failure_and_changes_no_token(model: Path) -> None:
    async with running(model, 2, stall_timeout_s=5.0) as (engine, info):
        expected = await asyncio.wait_for(await amid_a_generation(engine), 30)
        generation = await amid_a_generation(engine)
        os.kill(info.ranks[1].pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)
        os.kill(info.ranks[1].pid, signal.SIGCONT)
        assert await asyncio.wait_for(generation, 30) == expected


async def test_a_leader_that_stood_still_itself_blames_no_rank(model: Path) -> None:
    async with running(model, 2) as (engine, _):
        generation = await amid_a_generation(engine)
        time.sleep(4 * STALL_S)  # noqa: ASYNC251 (the leader itself stops)
        assert len((await asyncio.wait_for(generation, 30))[0]) == 480


async def test_a_fork_server_that_hangs_delays_neither_the_news_of_a_death_nor_the_next_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group_manager, "KILL_WAIT_S", 0.3)
    monkeypatch.setattr(process_group_manager, "ForkServerClient", ForkServerClient)  # shared with no other
    async with running(model, 1, rank_start="fork", engine_start_timeout_s=30) as (engine, info):
        generation = await amid_a_generation(engine)
        os.kill(psutil.Process(info.ranks[0].pid).ppid(), signal.SIGSTOP)
        os.kill(info.ranks[0].pid, signal.SIGKILL)
        failure = await end_of(generation)
        assert failure.reason == f"rank 0 (pid {info.ranks[0].pid}) is gone: killed by SIGKILL"
        await engine.stop()
        await engine.start()
        assert len((await generate(engine, [PROMPT], 3, [GREEDY]))[0]) == 3


async def test_a_rank_without_memory_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what the C library keeps of freed memory would do for the whole step
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**16))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(2**16))
    for _ in range(4):
        failure = await failure_without_memory(model)
        if "SIGABRT" not in failure.reason:  # C++ ends the process where it has no room for an error
            break
    assert (failure.kind, failure.rank) == ("memory", 1), failure
    assert failure.reason.startswith("rank 1: out of memory: ")


async def failure_without_memory(model: Path) -> Failure:
    """How a large step ends in a rank that gets no more memory."""
    # the step computes for longer than a rank may stall elsewhere
    async with running(model, 2, kernels="plain", stall_timeout_s=PATIENCE_S) as (engine, info):
        pid = info.ranks[1].pid
        await generate(engine, [PROMPT], 2, [GREEDY], first_id=1000)
        # between two steps: a step holds memory that the next one would find. Small allocations find room
        most = address_space(pid) + 2**19
        resource.prlimit(pid, resource.RLIMIT_AS, (most, most))
        prompts = [[7] * 100] * 64
        return await end_of(asyncio.create_task(generate(engine, prompts, 2, [GREEDY] * 64, first_id=5000)))


async def test_a_rank_that_takes_ever_more_memory_is_ended(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if memory had grown beyond the limit
    monkeypatch.setattr(ResourceAllocator, "memory_limit", lambda *_: 2**20)
    async with running(model, 1) as (engine, info):
        failure = await end_of(asyncio.create_task(one_after_another(engine)))
        assert (failure.kind, failure.rank) == ("memory", 0)
        assert f"rank 0 (pid {info.ranks[0].pid}) takes" in failure.reason
        await until(lambda: gone(info.ranks[0].pid))


async def test_what_an_earlier_start_left_over_does_not_fail_the_next_one(model: Path) -> None:
    processes = ProcessGroupManager()
    async with running(model, 1, processes, kv_store=kv_store("redis://127.0.0.1:9/0")) as (engine, _):
        (rank,) = processes.ranks
        assert rank.kv_sock is not None
        rank.kv_sock.shutdown(socket.SHUT_RDWR)
        await asyncio.sleep(0.01)  # it is noticed, and the reason is waited for
        await engine.stop()
        await engine.start()
        await asyncio.sleep(0.3)
        assert len((await generate(engine, [PROMPT], 3, [GREEDY]))[0]) == 3


LEADER = """
import asyncio, sys
from pathlib import Path
from tests.kits.engine.plans import num_steps
from tests.kits.engine.rank_options import rank_options
from services.worker.orchestrator.rank_engine import RankEngine
from tests.kits.engine.plans import GREEDY, generate

async def main():
    engine = RankEngine(rank_options(
        model=Path(sys.argv[1]), tensor_parallel=2, threads=1, kv_cache_tokens=8192, stall_timeout_s=60))
    info = await engine.start()
    await generate(engine, [[1, 2, 3]], 3, [GREEDY])
    print(*[rank.pid for rank in info.ranks], flush=True)
    for number in range(100000):
        tokens = await generate(engine, [[5, 9, 2]], 100, [GREEDY], first_id=10 + number)
        print(hash(tuple(tokens[0])), flush=True)

asyncio.run(main())
"""


@contextmanager
def leading(model: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A leader process that generates without end and prints a line for each generation."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", LEADER, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as leader:
        try:
            assert leader.stdout is not None
            yield leader, [int(pid) for pid in leader.stdout.readline().split()]
        finally:
            leader.kill()


@pytest.mark.parametrize("hung", [False, True])
async def test_ranks_end_with_their_leader_also_while_they_wait_for_each_other(
    model: Path, hung: bool
) -> None:
    with leading(model) as (leader, pids):
        assert len(pids) == 2
        if hung:  # from here on the other rank waits for this one in a collective
            os.kill(pids[1], signal.SIGSTOP)
            await asyncio.sleep(0.2)
        leader.kill()
        await until(lambda: all(map(gone, pids)))


async def test_ranks_wait_for_a_leader_that_is_stopped_and_go_on_with_it(model: Path) -> None:
    with leading(model) as (leader, pids):
        assert leader.stdout is not None
        first = await asyncio.to_thread(leader.stdout.readline)
        os.kill(leader.pid, signal.SIGSTOP)
        await asyncio.sleep(2.5)
        assert not any(map(gone, pids))
        os.kill(leader.pid, signal.SIGCONT)
        for _ in range(20):  # some lines were written before the stop
            assert await asyncio.wait_for(asyncio.to_thread(leader.stdout.readline), PATIENCE_S) == first


async def test_ranks_that_began_to_load_early_are_waited_for(model: Path) -> None:
    engine = RankEngine(rank_options(model=model, tensor_parallel=2, threads=1, kv_cache_tokens=8192))
    for _ in range(2):  # and again after a stop
        engine.start_loading()
        engine.start_loading()  # a second call changes nothing
        await until(lambda: all(row["state"] == "ready" for row in engine.status()))
        await engine.start()
        assert len(engine.status()) == 2
        assert (await generate(engine, [PROMPT], 5, [GREEDY]))[0]
        await engine.stop()


async def test_ranks_that_fail_while_they_load_early_fail_the_start(model: Path) -> None:
    engine = RankEngine(rank_options(model=model / "nowhere", tensor_parallel=1, threads=1))
    before = shared_files()
    engine.start_loading()
    await until(lambda: any(row["state"] == "failed" for row in engine.status()))
    with pytest.raises(EngineFailed, match="nowhere"):
        await engine.start()
    await engine.stop()
    assert shared_files() == before


async def test_ranks_that_load_early_end_with_the_engine(model: Path) -> None:
    engine, before = RankEngine(rank_options(model=model, tensor_parallel=2, threads=1)), shared_files()
    engine.start_loading()
    await until(lambda: all(row["pid"] for row in engine.status()))
    pids = [int(str(row["pid"])) for row in engine.status()]
    await engine.stop()
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert shared_files() == before


async def test_ranks_that_cannot_be_started_early_fail_the_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> list[object]:
        raise OSError("no more processes")

    engine, before = RankEngine(rank_options(model=model, tensor_parallel=2, threads=1)), shared_files()
    with monkeypatch.context() as patched:
        patched.setattr(ProcessGroupManager, "spawn_ranks", refuse)
        engine.start_loading()
    with pytest.raises(EngineFailed, match="no more processes"):
        await engine.start()
    assert shared_files() == before
    await engine.start()
    await engine.stop()
    assert shared_files() == before
