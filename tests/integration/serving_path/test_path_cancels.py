"""A caller leaves at each moment of a request, by HTTP and by the bus: the engine ends it within one step."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.worker.null.engine import TEXT
from shared import subjects
from shared.codec import convert
from shared.identity import new_request_id
from shared.messages import GenerateRequest
from tests.kits.stacks.lossy_path import LossyPath, lossy_path
from tests.kits.waiting import PATIENCE_S, until

STEP_S = 0.005
LONG = "word " * 200  # a thousand tokens, 31 steps
OTHER_TOKENS = 500  # two and a half seconds; leaving at all moments takes one
RUN_AHEAD = 1  # a step may be submitted in the turn of the loop in which the cancel comes


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[LossyPath]:
    async with lossy_path(tmp_path, step_s=STEP_S) as path:
        yield path


class Caller:
    """One request, and the ways to leave it."""

    def __init__(self, path: LossyPath, mode: str, prompt: str, tokens: int) -> None:
        self.path, self.way, self.prompt, self.tokens = path, mode, prompt, tokens
        self.came = 0  # bytes or frames that have come
        self._task = asyncio.create_task(self._by_bus() if mode == "bus" else self._by_http())

    async def leave(self) -> None:
        """Closes the connection, or leaves the stream."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _by_http(self) -> None:
        body = {
            "model": "demo", "prompt": self.prompt, "max_tokens": self.tokens, "ignore_eos": True,
            "stream": self.way == "stream",
        }  # fmt: skip
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.path.url.rpartition(":")[2]))
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            while part := await reader.read(65_536):
                self.came += len(part)
        finally:
            writer.transport.abort()

    async def _by_bus(self) -> None:
        raw: dict[str, Any] = {
            "request_id": new_request_id(), "model": "demo", "prompt": self.prompt,
            "sampling": {"max_tokens": self.tokens, "ignore_eos": True},
        }  # fmt: skip
        async with self.path.client.submit(convert(raw, GenerateRequest), timeout_s=PATIENCE_S) as stream:
            async for deltas in stream:
                self.came += len(deltas)


async def before_the_route(path: LossyPath, mode: str) -> Caller:
    path.proxies["router"].stall()
    caller = Caller(path, mode, "Hello", 400)
    await asyncio.sleep(0.05)
    return caller


async def while_queued(path: LossyPath, mode: str) -> Caller:
    """The test has filled the second place."""
    await until(lambda: path.load()[0] == 2)
    caller = Caller(path, mode, "Hello", 400)
    await until(lambda: path.load() == (2, 1))
    return caller


async def in_the_prompt(path: LossyPath, mode: str) -> Caller:
    caller = Caller(path, mode, LONG, 400)
    await until(lambda: path.load()[0] == 2)
    now = len(path.engine.steps)
    await until(lambda: len(path.engine.steps) > now + 3)
    return caller


async def between_tokens(path: LossyPath, mode: str, running: int = 2) -> Caller:
    caller = Caller(path, mode, "Hello", 1500)
    await until(lambda: path.load()[0] == running)
    now = len(path.engine.steps)
    await until(lambda: len(path.engine.steps) > now + 5)
    return caller


async def with_the_last_frame_in_flight(path: LossyPath, mode: str) -> Caller:
    caller = Caller(path, mode, "Hello", 8)
    await until(lambda: path.load()[0] == 2)
    path.proxies["leader"].stall()
    await until(lambda: path.load()[0] == 1)
    return caller


MOMENTS = [before_the_route, while_queued, in_the_prompt, between_tokens, with_the_last_frame_in_flight]


@pytest.mark.parametrize("mode", ["stream", "whole", "bus"])
async def test_a_caller_that_leaves_at_each_moment(path: LossyPath, mode: str) -> None:
    body = {"model": "demo", "prompt": "Other", "max_tokens": OTHER_TOKENS, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=path.url, timeout=30) as http:
        other = asyncio.create_task(http.post("/v1/completions", json=body))
        await until(lambda: path.load() == (1, 0))
        for moment in MOMENTS:
            await leave_at(path, mode, moment)
        assert not other.done(), "the other request was to run meanwhile"
        answer = await other
    assert answer.status_code == 200
    text = answer.json()["choices"][0]["text"]
    assert len(text) == OTHER_TOKENS
    assert text in TEXT * 20
    await path.all_free()


async def leave_at(path: LossyPath, mode: str, moment: Callable[..., Any]) -> None:
    second = Caller(path, "bus", "Hello", 400) if moment is while_queued else None
    if second:
        await until(lambda: path.load()[0] == 2)
    caller = await moment(path, mode)
    path.cancels_at.clear()
    await caller.leave()
    for proxy in path.proxies.values():
        proxy.resume()
    stay = 2 if second else 1
    if moment is not with_the_last_frame_in_flight:
        await until(lambda: bool(path.cancels_at))
        cancelled_at = path.cancels_at[0]
        await until(lambda: path.load() == (stay, 0))
        await until(lambda: len(path.engine.steps) > cancelled_at + RUN_AHEAD + 2)
        late = [step for step in path.engine.steps[cancelled_at + RUN_AHEAD :] if len(step) > stay]
        assert late == [], moment.__name__
    if second:
        await second.leave()
    await until(lambda: path.load() == (1, 0))


async def test_a_cancel_that_is_lost_is_sent_again(path: LossyPath) -> None:
    """Tokens that go on coming tell the client that the leader does not know."""
    proxy = path.proxies["gateway"]
    caller = await between_tokens(path, "bus", running=1)
    proxy.loss = lambda subject, _: subject == subjects.cancel("g0") and not proxy.lost
    await caller.leave()
    await until(lambda: bool(path.cancels_at))
    assert proxy.lost == [subjects.cancel("g0")]
    await path.all_free()
