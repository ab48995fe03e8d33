"""Ranks forked from a fork server: fast restarts, thread pools, reported failures, cleanup."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
import structlog

from services.worker.orchestrator.fork_server_client import ForkServerClient
from services.worker.orchestrator.process_group_manager import RankStart
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.chaos.scale import scaled
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate, make_llama
from tests.kits.engine.shared_fork_server import end_shared_fork_servers
from tests.kits.waiting import PATIENCE_S, until

PROMPT = [5, 9, 2, 77, 140]
RESTARTS = scaled(4, 50)


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> None:
    """None is shared here."""
    end_shared_fork_servers()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model wide enough that torch splits its operations over threads."""
    return make_llama(
        tmp_path_factory.mktemp("wide"), hidden_size=512, intermediate_size=2048, num_hidden_layers=2
    )


def engine_of(model: Path, world: int = 1, threads: int = 1, **options: object) -> RankEngine:
    given = {"tensor_parallel": world, "threads": threads, "kv_cache_tokens": 8192, **options}
    return RankEngine(rank_options(model=model, **given))


async def submit_on(engine: RankEngine) -> None:
    """Submits empty steps until the engine fails."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await engine.submit(StepPlan(step_id=1))


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def cpu_s(pid: int) -> float:
    """CPU seconds that all threads of a process took; those of its parent before the fork do not count."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def fork_servers() -> list[int]:
    """Process ids of the fork servers that this process started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    return [
        int(pid)
        for pid in children
        if b"engine.rank.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_restarts_after_crashes_with_thread_pools(wide: Path) -> None:
    engine = engine_of(wide, threads=2)
    seconds, tokens = [], []
    try:
        for number in range(RESTARTS):
            pid = (await engine.start()).ranks[0].pid
            seconds.append(cpu_s(pid))
            prompt = [index % 200 for index in range(100)]
            tokens.append((await generate(engine, [prompt], 2, [GREEDY]))[0])
            if number == 0:
                fork_server = parent(pid)
                assert (comm(fork_server), comm(pid)) == ("ryz-fork-server", "ryz-rank-0")
                assert threads_of(fork_server) == 1
                imports_s = cpu_s(fork_server)
                assert threads_of(pid) >= 2, "the test has to use a pool"
            assert parent(pid) == fork_server, f"the first one runs: {runs(fork_server)}"
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineFailed, match=r"rank 0 \(pid \d+\) is gone: killed by SIGKILL"):
                await submit_on(engine)
            await engine.stop()
    finally:
        await engine.stop()
    # a rank that imported torch itself would take as much as the fork server did
    assert sorted(seconds)[RESTARTS // 2] < imports_s / 2, (seconds, imports_s)
    assert all(made == tokens[0] for made in tokens)
    assert not runs(fork_server)


async def test_forked_and_spawned_ranks_say_the_same(model: Path) -> None:
    said = []
    for start in ("fork", "spawn"):
        engine = engine_of(model, world=2, rank_start=start)
        try:
            info = await engine.start()
            said.append(await generate(engine, [PROMPT], 8, [GREEDY]))
            assert (parent(info.ranks[1].pid) == os.getpid()) == (start == "spawn")
        finally:
            await engine.stop()
        assert not any(runs(rank.pid) for rank in info.ranks)
    assert said[0] == said[1]


async def test_the_end_of_the_fork_server_is_the_end_of_its_ranks_and_is_told(model: Path) -> None:
    engine = engine_of(model, world=2)
    try:
        info = await engine.start()
        fork_server = parent(info.ranks[0].pid)
        os.kill(fork_server, signal.SIGKILL)
        with pytest.raises(EngineFailed, match=r"is gone: the process that ranks are forked from ended"):
            await submit_on(engine)
        await engine.stop()
        assert not any(runs(rank.pid) for rank in info.ranks)
        again = await engine.start()
        assert parent(again.ranks[0].pid) != fork_server
        assert len((await generate(engine, [PROMPT], 3, [GREEDY]))[0]) == 3
    finally:
        await engine.stop()


async def test_a_fork_server_that_hangs_is_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.orchestrator.process_group_manager.KILL_WAIT_S", 0.2)
    engine = engine_of(model, step_timeout_s=0.5)
    try:
        pid = (await engine.start()).ranks[0].pid
        fork_server = parent(pid)
        os.kill(pid, signal.SIGSTOP)
        os.kill(fork_server, signal.SIGSTOP)
        with pytest.raises(EngineFailed, match=r"was not done within 0\.5 s"):
            await submit_on(engine)
        await engine.stop()
        await until(lambda: not runs(pid) and not runs(fork_server))
        again = await engine.start()
        assert parent(again.ranks[0].pid) != fork_server
    finally:
        await engine.stop()


async def test_a_fork_server_that_tells_late_of_a_rank_that_is_dead_is_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.orchestrator.process_group_manager.KILL_WAIT_S", 0.2)
    engine = engine_of(model)
    try:
        pid = (await engine.start()).ranks[0].pid
        fork_server = parent(pid)
        with monkeypatch.context() as unheard, structlog.testing.capture_logs() as lines:
            unheard.setattr(ForkServerClient, "read_reports", lambda _: None)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineFailed, match=r"is gone: "):
                await submit_on(engine)
            await engine.stop()
        (line,) = [one for one in lines if one["event"] == "a rank did not end when it was killed"]
        assert line["why"] == "state of the rank: gone, state of the fork server: S"
        again = await engine.start()
        assert parent(again.ranks[0].pid) == fork_server
    finally:
        await engine.stop()


async def test_a_prepared_engine_starts_at_once_and_an_unused_one_leaves_nothing(model: Path) -> None:
    engine = engine_of(model, world=2)
    engine.start_fork_server()
    await until(
        lambda: len(fork_servers()) == 1
    )  # the kernel shows a command line shortly after the process starts
    (fork_server,) = fork_servers()
    try:
        info = await engine.start()
        assert {parent(rank.pid) for rank in info.ranks} == {fork_server}
        assert max(cpu_s(rank.pid) for rank in info.ranks) < cpu_s(fork_server) / 2
    finally:
        await engine.stop()
    assert not runs(fork_server)
    engine.start_fork_server()
    await until(lambda: len(fork_servers()) == 1)
    await engine.stop()
    assert not fork_servers()


async def test_a_fork_server_that_cannot_load_is_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    broken = (sys.executable, "-c", "raise SystemExit(3)")
    monkeypatch.setattr(
        "services.worker.orchestrator.fork_server_client.ForkServerClient.__init__.__defaults__", (broken,)
    )
    engine = engine_of(model)
    with pytest.raises(EngineFailed, match=r"the process that ranks are forked from ended \(exit code 3\)"):
        await engine.start()
    await engine.stop()


async def test_forking_is_for_linux(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    engine = engine_of(model, rank_start="fork")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EngineFailed, match="RYZ_RANK_START=fork needs Linux; set it to spawn or auto"):
        await engine.start()


THREADS = """
import os, socket, sys, threading
from services.worker.engine.rank.fork_server import ForkServer
threading.Thread(target=threading.Event().wait, daemon=True).start()
ForkServer(socket.socket(fileno=int(sys.argv[1])), lambda *_: 0).serve_requests()
"""


async def test_a_fork_server_with_threads_does_not_fork(
    monkeypatch: pytest.MonkeyPatch, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, "-c", THREADS)
    monkeypatch.setattr(
        "services.worker.orchestrator.fork_server_client.ForkServerClient.__init__.__defaults__", (command,)
    )
    engine = engine_of(model)
    with pytest.raises(EngineFailed, match=r"forked from ended \(exit code 1\)"):
        await engine.start()
    text = capfd.readouterr().err
    assert '"count": 2' in text or "count=2" in text
    assert "RYZ_RANK_START=spawn" in text


def niceness_of(pid: int) -> Counter[int]:
    """The number of threads at each nice value."""
    return Counter(os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_all_of_a_ready_rank_but_its_lifeline_gives_way(model: Path, start: RankStart) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    engine = engine_of(model, rank_start=start, rank_nice=own + 7)
    try:
        pid = (await engine.start()).ranks[0].pid
        await until(lambda: niceness_of(pid) == {own: 1, own + 7: threads_of(pid) - 1})
        assert niceness_of(pid)[own + 7] > 0
    finally:
        await engine.stop()
        await engine.stop()
