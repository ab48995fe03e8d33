"""Streams of `/v1/realtime` whose connection was lost: on the next one nothing is missing or repeated."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKENS, STREAMS, CUTS = 60, 8, 12
# answers that are the same each time; several streams on each connection
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "n": 2}),
    ("/v1/completions", {"prompt": "Hello", "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    leader = {"engine": null_engine(delay_s=0.002)}
    async with gateway_with_leader(leader=leader, stream_max_parked=64) as running:
        yield running


class Reader:
    """One stream over as many connections as it takes."""

    def __init__(self, place: int) -> None:
        self.name = f"r{place}"
        self.path, body = BODIES[place % len(BODIES)]
        self.body = body | {"model": "demo", "max_tokens": TOKENS}
        self.stream_id = ""
        self.events: list[tuple[str, str]] = []
        self.done = False

    def asks(self) -> str:
        if not self.stream_id:
            return json.dumps({"type": "request", "id": self.name, "path": self.path, "body": self.body})
        last = self.events[-1][0] if self.events else ""
        resume = {"type": "resume", "id": self.name, "stream_id": self.stream_id, "last_event_id": last}
        return json.dumps(resume)

    def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "accepted":
            self.stream_id = self.stream_id or message["headers"]["x-stream-id"]
        elif message["type"] == "event":
            self.events.append((message["event_id"], json.dumps(message["data"])))
        else:
            assert message["type"] == "done", message
            self.done = True


async def read(gateway: Gateway, readers: list[Reader], cuts: list[int]) -> None:
    """Reads to the end; the connection is torn after so many messages, for each of `cuts`."""
    by_name = {reader.name: reader for reader in readers}
    for cut in [*cuts, 1_000_000]:
        socket = await connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime")
        assert json.loads(await socket.recv())["type"] == "ready"
        for reader in readers:
            if not reader.done:
                await socket.send(reader.asks())
        for _ in range(cut):
            if all(reader.done for reader in readers):
                break
            async with asyncio.timeout(20):
                message = json.loads(await socket.recv())
            by_name[message["id"]].take(message)
        socket.transport.abort()  # as a broken network does
        await asyncio.sleep(0.02)


def said(reader: Reader) -> dict[str, str]:
    """The text and the end of each choice; how both are cut into events depends on the time."""
    told: dict[str, str] = {}
    for _, text in reader.events:
        data = json.loads(text)
        for choice in data.get("choices", []):
            new = choice["delta"].get("content") if "delta" in choice else choice["text"]
            place = f"choice {choice['index']}"
            told[place] = told.get(place, "") + (new or "") + (choice["finish_reason"] or "")
        if data.get("type") == "content_block_delta":
            told["text"] = told.get("text", "") + data["delta"]["text"]
        elif "type" in data:
            told["types"] = told.get("types", "") + f" {data['type']}"
    return told


async def test_cuts_at_random_lose_and_repeat_nothing(gateway: Gateway) -> None:
    rng = random.Random(5)
    whole, torn = ([Reader(place) for place in range(STREAMS)] for _ in range(2))
    await read(gateway, whole, [])
    await read(gateway, torn, [rng.randint(1, 60) for _ in range(CUTS)])
    for one, other in zip(whole, torn, strict=True):
        assert one.done
        assert other.done
        ids = [event_id for event_id, _ in other.events]
        assert len(set(ids)) == len(ids)
        assert said(other) == said(one)
        assert all(said(one).values())


async def test_a_cancelled_stream_does_not_go_on(gateway: Gateway) -> None:
    reader = Reader(0)
    reader.body["max_tokens"] = 2000
    async with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime") as socket:
        await socket.recv()
        await socket.send(reader.asks())
        while not reader.events:
            reader.take(json.loads(await socket.recv()))
        await socket.send(json.dumps({"type": "cancel", "id": reader.name}))
        while json.loads(await socket.recv())["type"] != "cancelled":
            pass
        await gateway.wait_idle()
        await socket.send(json.dumps({"type": "resume", "id": "again", "stream_id": reader.stream_id}))
        answer = json.loads(await socket.recv())
        assert (answer["type"], answer["status"]) in {("error", 404), ("accepted", 200)}
        if answer["type"] == "accepted":  # its frames are kept for a while, and end with the cancel
            messages = [json.loads(await socket.recv())]
            while messages[-1]["type"] != "done":
                messages.append(json.loads(await socket.recv()))
            assert "error" in messages[-2]["data"]
