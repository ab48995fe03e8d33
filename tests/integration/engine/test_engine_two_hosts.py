"""A group over two hosts: the same tokens, errors when a host is lost, and refused joins."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.orchestrator.remote_ranks import RemoteRankListener
from services.worker.rank_protocol.failures import EngineFailed
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import GREEDY, generate, make_llama
from tests.kits.engine.two_hosts import ADDRESSES, two_hosts, why_not
from tests.kits.waiting import PATIENCE_S

Process = subprocess.Popen[str]
ROOT = Path(__file__).parents[3]
TOKEN = "a secret of this test"
PROMPT = [5, 9, 2, 77, 140] * 9

LEADER = """
import asyncio, json, sys
from pathlib import Path
from tests.kits.engine.rank_options import rank_options
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed
from tests.kits.engine.plans import GREEDY, generate

async def main(model, listen, token, timeout_s, prompt):
    engine = RankEngine(rank_options(
        model=Path(model), tensor_parallel=3 if "three" in sys.argv else 2, threads=1, kv_cache_tokens=8192,
        remote_ranks=1, rank_listen=listen, rank_token=token, engine_start_timeout_s=float(timeout_s)))
    while True:
        try:
            info = await engine.start()
            tokens = await generate(engine, [json.loads(prompt)], 12, [GREEDY])
            print(json.dumps({"tokens": tokens[0], "status": engine.status()}), flush=True)
            while True:
                await generate(engine, [json.loads(prompt)], 12, [GREEDY], first_id=2)
        except EngineFailed as error:
            print(json.dumps({"failed": str(error)}), flush=True)
        await engine.stop()
        if "again" not in sys.argv:
            break
    await engine.stop()

asyncio.run(main(*sys.argv[1:6]))
"""


@pytest.fixture
def hosts() -> Iterator[tuple[list[str], list[str]]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as both:
        yield both


def run(host: list[str], *words: str, token: str = TOKEN) -> Process:
    return subprocess.Popen(
        [*host, sys.executable, *words],
        env=os.environ | {"RYZ_RANK_TOKEN": token}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def join(host: list[str], address: str, model: Path, *more: str, token: str = TOKEN) -> Process:
    words = ["-m", "services.worker.engine", "--join", address, "--model", str(model), "--threads", "1"]
    return run(host, *words, *more, token=token)


def lead(host: list[str], address: str, model: Path, *more: str, timeout_s: float = 40) -> Process:
    return run(host, "-c", LEADER, str(model), address, TOKEN, str(timeout_s), json.dumps(PROMPT), *more)


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def find(stream: IO[str] | None, text: str) -> None:
    """Reads lines until one contains the text; libraries may print others."""
    assert stream is not None
    seen = []
    for said in stream:
        seen.append(said)
        if text in said:
            return
    raise AssertionError(seen)


def end(*processes: Process) -> None:
    for process in processes:
        process.kill()
        process.communicate()


async def one_host(model: Path) -> list[int]:
    engine = RankEngine(rank_options(model=model, threads=1, kv_cache_tokens=8192))
    try:
        await engine.start()
        return (await generate(engine, [PROMPT], 12, [GREEDY]))[0]
    finally:
        await engine.stop()


async def test_two_hosts_say_what_one_says_and_find_each_other_again(
    hosts: tuple[list[str], list[str]], model: Path
) -> None:
    address = f"{ADDRESSES[0]}:7077"
    far = join(hosts[1], address, model)  # joins before a leader runs
    find(far.stderr, "no leader yet")
    leader = lead(hosts[0], address, model, "again")
    try:
        said = json.loads(line(leader.stdout))
        assert said["tokens"] == await one_host(model)
        assert [row["host"] for row in said["status"]] == ["", ADDRESSES[1]]
        find(far.stderr, f'"leader": "{address}", "event": "joined the leader"')
        # a lost rank: the leader reports it, and the joining process starts another one
        os.kill(said["status"][1]["pid"], signal.SIGKILL)
        failed = json.loads(line(leader.stdout))["failed"]
        gone = f"rank 1 (pid {said['status'][1]['pid']} on {ADDRESSES[1]}) is gone"
        assert gone in failed or "rank 0 lost the others" in failed, (
            failed
        )  # its socket or its neighbour is first
        find(far.stderr, "joined the leader")
        assert json.loads(line(leader.stdout))["tokens"] == said["tokens"]
        # a lost leader: the rank ends, and the joining process waits for the next leader
        leader.kill()
        find(far.stderr, "is gone")
        second = lead(hosts[0], address, model)
        try:
            assert json.loads(line(second.stdout))["tokens"] == said["tokens"]
        finally:
            end(second)
        far.terminate()
        assert far.wait(PATIENCE_S) == 0
    finally:
        end(leader, far)


def test_a_host_with_another_model_is_refused(
    hosts: tuple[list[str], list[str]], model: Path, tmp_path: Path
) -> None:
    other = make_llama(tmp_path / "other", intermediate_size=128)
    address = f"{ADDRESSES[0]}:7077"
    far, leader = join(hosts[1], address, other), lead(hosts[0], address, model)
    try:
        assert f"{other} on the host of rank 1 is another model" in json.loads(line(leader.stdout))["failed"]
        assert far.wait(PATIENCE_S) == 2
        assert "is another model than the leader's" in far.communicate()[1]
    finally:
        end(leader, far)


def test_a_wrong_token_and_too_few_ranks_are_told(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    far = join([], address, model, token="some other secret here")
    find(far.stderr, "no leader yet")  # it has started, and tries again and again
    leader = lead([], address, model, timeout_s=9)
    try:
        assert far.wait(PATIENCE_S) == 2
        assert "its RYZ_RANK_TOKEN is another" in far.communicate()[1]
        failed = json.loads(line(leader.stdout))["failed"]
        assert f"0 of 1 ranks of other hosts joined at {address} within 9 s (127.0.0.1 was refused" in failed
    finally:
        end(leader, far)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--join", "nowhere", "--model", "models/demo"], "--join: 'nowhere' is no address"),
        (["--join", "a:1", "--model", "none"], "none/config.json does not exist"),
    ],
)
def test_what_a_joining_host_gets_wrong_is_reported_at_once(words: list[str], said: str) -> None:
    process = run([], "-m", "services.worker.engine", *words)
    assert said in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 2


def test_a_missing_token_is_reported() -> None:
    process = run([], "-m", "services.worker.engine", "--join", "a:1", "--model", "models/demo", token="")
    assert "RYZ_RANK_TOKEN must be" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 2


async def test_strangers_that_connect_do_no_harm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = RemoteRankListener(f"127.0.0.1:{port}", TOKEN, 1)

    def knock() -> None:
        for said in (b"GET / HTTP/1.1\r\n\r\n" * 99, b"", b"\x01\x00\x00\x00\x07\xc0"):
            deadline = time.monotonic() + 5
            while True:
                try:
                    stranger = socket.create_connection(("127.0.0.1", port))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
            with stranger:
                stranger.sendall(said)

    knocking = asyncio.get_running_loop().run_in_executor(None, knock)
    with pytest.raises(EngineFailed, match=r"0 of 1 ranks .* was refused: it did not say hello"):
        await ranks.gather_ranks(1, 2.0)
    await knocking
    ranks.close()
