"""Two stacks on one broker: group names differ, each answer is of one group, and none is computed twice."""

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.servers import NatsServer
from tests.kits.waiting import wait_for

STREAMS = 48
PROMPTS = [f"Number {number} says:" for number in range(8)]
NULL = ("--engine", "null", "--groups", "1", "--model-name", "twin")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with the same name and different weights."""
    folder = tmp_path_factory.mktemp("twins")
    made = [folder / name / "twin" for name in "ab"]
    for seed, model in enumerate(made):
        make_model(model, SHAPES["tiny"], seed=seed)
    return made


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop(kill=True)


def begin(folder: Path, *options: str) -> Stack:
    folder.mkdir()
    return Stack(folder, *options)


def ask(url: str, prompt: str) -> tuple[str, str]:
    """The group that answered, and its answer."""
    body = {"model": "twin", "prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-ryz-group"], answer.json()["choices"][0]["text"]


def counted(stack: Stack, service: str, counter: str) -> float:
    """The sum of a counter over the processes of one kind that a stack runs."""
    own = {one.pid for one in stack.state.services}
    total = 0.0
    for one in stack.status()["services"]:
        if one["service"] == service and one["pid"] in own:
            metrics = httpx.get(f"{one['detail'].get('admin_url') or stack.state.url}/metrics").text
            lines = [line for line in metrics.splitlines() if line.partition("{")[0].split()[0] == counter]
            total += sum(float(line.rpartition(" ")[2]) for line in lines)
    return total


def test_no_answer_is_a_mixture_and_none_is_made_twice(
    nats: NatsServer, redis_url: str, models: list[Path], tmp_path: Path
) -> None:
    shared = ("--nats-url", nats.url, "--redis-url", redis_url, "--groups", "1", "--tensor-parallel", "1")
    with (
        begin(tmp_path / "a", "--model", str(models[0]), *shared) as first,
        begin(tmp_path / "b", "--model", str(models[1]), *shared) as second,
    ):
        urls = [stack.await_ready().state.url for stack in (first, second)]
        with ThreadPoolExecutor(12) as pool:
            asked = [(urls[number % 2], PROMPTS[number % len(PROMPTS)]) for number in range(STREAMS)]
            answers = list(pool.map(lambda one: ask(*one), asked))
        texts: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for (_, prompt), (group, text) in zip(asked, answers, strict=True):
            texts[group][prompt].add(text)
        assert len(texts) == 2, "each stack has a group of its own"
        assert all(len(said) == 1 for by_prompt in texts.values() for said in by_prompt.values()), texts
        one, other = (set().union(*by_prompt.values()) for by_prompt in texts.values())
        assert not one & other, "the weights differ"
        taken = sum(counted(stack, "worker", "ryz_worker_requests_total") for stack in (first, second))
        # a group that takes longer than 200 ms to accept a request may get it again, as may the other group
        again = sum(counted(stack, "gateway", "ryz_client_republished_total") for stack in (first, second))
        print(f"{taken:.0f} taken, {again:.0f} published again")
        assert STREAMS <= taken <= STREAMS + again
        for stack in (first, second):
            assert stack.end() == 0


def test_second_stacks_are_refused_and_a_killed_leader_is_back_soon(
    nats: NatsServer, redis_url: str, tmp_path: Path
) -> None:
    shared = ("--nats-url", nats.url, "--redis-url", redis_url, *NULL)
    with begin(tmp_path / "a", "--stack", "same", *shared) as first:
        url = first.await_ready().state.url
        with begin(tmp_path / "b", "--stack", "same", *shared) as second:
            assert second.process.wait(timeout=50) != 0
            output = second.output.read_text()
        assert "worker cannot start: group same-g0 has a leader already: instance " in output
        assert "--stack NAME" in output
        assert ask(url, "hello")[0] == "same-g0"

        own_store = ryz("up", "--port", "0", "--nats-url", nats.url, *NULL, cwd=tmp_path)
        assert own_store.returncode == 2
        assert "--redis-url" in own_store.stderr + own_store.stdout

        pid = first.pid_of("worker-g0")
        subprocess.run(["kill", "-9", str(pid)], check=True)
        began = time.monotonic()
        wait_for(lambda: first.pid_of("worker-g0") not in {pid, 0}, "the leader is started again")
        wait_for(
            lambda: next(one.ready for one in first.state.services if one.name == "worker-g0"),
            "the leader serves again",
        )
        print(f"back after {time.monotonic() - began:.2f} s")
        assert ask(url, "hello")[0] == "same-g0"
        assert first.end() == 0
