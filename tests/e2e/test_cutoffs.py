"""Hundreds of concurrent streams, a third of them cut off by clients: the others go on, and nothing leaks.

Leaks are read from the services: blocks and queue places from the leaders, tasks from every service's status,
open files from the system.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import psutil
import pytest

from cli.explain.course import RESUMED, courses
from cli.explain.explain_query import query_explanations
from cli.status.status_query import find_broker
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(120)
PROMPTS = [f"Tell me about number {number}." for number in range(8)]


@pytest.fixture(scope="module")
def slow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The null engine with steps of 10 ms, so that streams last long enough to be cut off."""
    folder = tmp_path_factory.mktemp("slow-stack")
    env = {"RYZ_NULL_STEP_DELAY_MS": "10", "RYZ_REQUEST_LOG": "true"}
    with Stack(folder, "--engine", "null", env=env) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


async def read_stream(client: httpx.AsyncClient, prompt: str, *, tokens: int, cut_after: int = 0) -> str:
    """Reads one stream's text; with `cut_after`, closes the connection after that many events."""
    body = {
        "model": "demo",
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    text, events, ended = "", 0, False
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            text += chunk["choices"][0]["delta"].get("content") or ""
            events += 1
            if cut_after and events >= cut_after:
                return text
    assert ended, "a stream ended without [DONE]"
    return text


async def read_alone(url: str, tokens: int) -> dict[str, str]:
    """The text of each prompt's stream, read one after the other."""
    async with httpx.AsyncClient(base_url=url, timeout=90) as client:
        return {prompt: await read_stream(client, prompt, tokens=tokens) for prompt in PROMPTS}


async def flood(url: str, streams: int, tokens: int, expected: dict[str, str], seed: int) -> None:
    """Runs all streams concurrently and compares each uncut one with `expected`."""
    rng = random.Random(seed)
    cuts = [rng.randint(1, max(2, tokens // 2)) if place < streams // 3 else 0 for place in range(streams)]
    rng.shuffle(cuts)
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=90, limits=limits) as client:
        prompts = [PROMPTS[place % len(PROMPTS)] for place in range(streams)]
        texts = await asyncio.gather(
            *(
                read_stream(client, prompt, tokens=tokens, cut_after=cut)
                for prompt, cut in zip(prompts, cuts, strict=True)
            )
        )
    for text, prompt, cut in zip(texts, prompts, cuts, strict=True):
        if cut:
            assert expected[prompt].startswith(text)
        else:
            assert text == expected[prompt]


def snapshot(stack: Stack) -> dict[str, Any]:
    """What could leak: tasks and open files of every service, blocks and places of every group."""
    report = stack.status()
    files = {one["pid"]: psutil.Process(one["pid"]).num_fds() for one in report["services"]}
    tasks = {one["pid"]: one["detail"]["tasks"] for one in report["services"]}
    groups = {
        group["group"]: (group["running"], group["waiting"], group["free_blocks"])
        for group in report["groups"]
    }
    return {"files": files, "tasks": tasks, "groups": groups}


@pytest.mark.parametrize(("name", "streams", "tokens"), [("slow_stack", 200, 40), ("torch_stack", 64, 24)])
async def test_cut_streams_leave_nothing_and_touch_no_other_stream(
    request: pytest.FixtureRequest, name: str, streams: int, tokens: int
) -> None:
    stack: Stack = request.getfixturevalue(name)
    url = stack.state.url
    expected = await read_alone(url, tokens)
    await flood(url, streams, tokens, expected, seed=1)  # fills pools and caches, so later growth is a leak
    await asyncio.sleep(1.0)
    before = snapshot(stack)
    await flood(url, streams, tokens, expected, seed=2)
    await asyncio.sleep(1.0)  # everything must be free again within a second
    after = snapshot(stack)
    assert after["groups"] == before["groups"]
    assert all(running == waiting == 0 for running, waiting, _ in after["groups"].values())
    for kind in ("tasks", "files"):
        for pid, count in after[kind].items():
            assert count <= before[kind][pid] + 2, (kind, pid, before[kind], after[kind])


async def test_the_time_of_each_request_is_explained(slow_stack: Stack) -> None:
    """Sixty streams, of which some go on in another group: the spans sum to what the gateway measured."""
    url, groups = slow_stack.state.url, slow_stack.status()["groups"]
    begun = time.time()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        running = [asyncio.create_task(read_stream(client, PROMPTS[n % 8], tokens=60)) for n in range(60)]
        await asyncio.sleep(0.4)
        os.kill(groups[0]["leader_pid"], signal.SIGKILL)
        await asyncio.gather(*running)
    logged = [json.loads(line) for line in (slow_stack.place.logs / "gateway.log").read_text().splitlines()]
    seconds = {
        line["request_id"]: line["seconds"]
        for line in logged
        if line["event"] == "request" and datetime.fromisoformat(line["timestamp"]).timestamp() > begun
    }
    assert len(seconds) == 60
    broker = find_broker("", slow_stack.place)
    told = courses(await query_explanations(broker, slow_stack.place, "r-"))
    explained = {course.request_id: course for course in told if course.request_id in seconds}
    assert explained.keys() == seconds.keys()
    for request_id, course in explained.items():
        assert course.total_ms == pytest.approx(seconds[request_id] * 1000, abs=1.0)
        assert course.spans[-1].what == "answer to the client"
    moved = [course for course in told if any(RESUMED in span.what for span in course.spans)]
    assert moved
    assert any(span.what == "decode" and span.attempt == 1 for span in moved[0].spans)
