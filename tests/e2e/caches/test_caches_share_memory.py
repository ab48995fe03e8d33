"""A model fits only once the KV cache of another one is smaller: none is evicted, and no stream changes."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.telemetry.logs.schema import problems_of
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for

LARGE, SMALL = "large", "small"
BLOCK_TOKENS = 16
MOST_TOKENS, LEAST_TOKENS = 262_144, 32_768
MEMORY_GIB = "2.3"  # 1.4 GiB for groups, of which they count for 1,060 and 580 MiB
MODELS = f"""
[[models]]
name = "{LARGE}"
source = "demo"
kv_cache_tokens = {MOST_TOKENS}
kv_cache_min_tokens = {LEAST_TOKENS}

[[models]]
name = "{SMALL}"
source = "demo"
load = "demand"
"""
QUESTIONS = ("Count.", "My name is Ada.", "What is the sea?", "Tell me of a bird.")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("caches")
    (folder / "models.toml").write_text(MODELS)
    options = ("--models", "models.toml", "--memory", MEMORY_GIB, "--routers", "2")
    with Stack(folder, *options, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
        assert stack.leftovers() == []


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.state.url, timeout=90) as client:
        yield client


def stream(http: httpx.Client, model: str, text: str) -> str:
    """The text of a whole stream."""
    body = {
        "model": model,
        "max_tokens": 96,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
    }
    said = ""
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                said += event["choices"][0]["delta"].get("content") or ""
    return said


def streams(http: httpx.Client) -> list[str]:
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        return list(pool.map(lambda text: stream(http, LARGE, text), QUESTIONS))


def blocks_of(stack: Stack, model: str) -> int:
    """The blocks that the group of a model may fill, by its own account; 0 while it does not answer."""
    found = (one.get("detail") or {} for one in stack.status()["services"])
    return next((one["total_blocks"] for one in found if one.get("model") == model), 0)


def actions(stack: Stack) -> list[dict[str, object]]:
    logs = stack.state_dir.logs.glob("router*.log")
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert [problems for line in lines if (problems := problems_of(line))] == []
    return [line for line in lines if line["event"] == "model action"]


def test_a_cache_makes_room_for_another_model_while_its_group_streams(
    stack: Stack, http: httpx.Client
) -> None:
    wanted = streams(http)
    assert all(wanted)
    assert blocks_of(stack, LARGE) == MOST_TOKENS // BLOCK_TOKENS
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream, http, SMALL, QUESTIONS[0])
        beside = [streams(http)]
        while not asked.done():
            beside.append(streams(http))
        assert asked.result() == wanted[0]  # the same model by another name
    assert all(each == wanted for each in beside)
    blocks = blocks_of(stack, LARGE)
    assert LEAST_TOKENS // BLOCK_TOKENS <= blocks < MOST_TOKENS // BLOCK_TOKENS
    assert streams(http) == wanted
    assert {(one["action"], one["reason"]) for one in actions(stack)} == {
        ("resize", "wanted"),
        ("load", "demand"),
    }


def test_a_group_that_starts_again_is_told_its_limit(stack: Stack, http: httpx.Client) -> None:
    limit = blocks_of(stack, LARGE)
    name = next(one.name for one in stack.state.services if one.model == LARGE)
    os.kill(stack.pid_of(name), signal.SIGKILL)
    assert stream(http, LARGE, QUESTIONS[0])
    wait_for(lambda: blocks_of(stack, LARGE) == limit, "the limit holds again")


def test_the_cache_grows_again_when_the_other_model_has_gone(stack: Stack, http: httpx.Client) -> None:
    wanted = streams(http)
    assert http.post(f"/v1/manage/models/{SMALL}/unload?wait=60").status_code == 200
    most = MOST_TOKENS // BLOCK_TOKENS
    wait_for(lambda: blocks_of(stack, LARGE) == most, "the cache has all its blocks again")
    assert streams(http) == wanted
    assert ("resize", "free") in {(one["action"], one["reason"]) for one in actions(stack)}
