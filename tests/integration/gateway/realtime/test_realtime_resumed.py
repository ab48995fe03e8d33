"""Streams of `/v1/realtime` whose connection was lost: on the next one nothing is missing or repeated."""

import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.realtime.readers import Reader, read, said
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKENS, STREAMS, CUTS = 60, 8, 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    leader = {"engine": null_engine(delay_s=0.002)}
    async with gateway_with_leader(leader=leader, stream_max_parked=64) as running:
        yield running


async def test_cuts_at_random_lose_and_repeat_nothing(gateway: Gateway) -> None:
    rng = random.Random(5)
    whole, torn = ([Reader(index, TOKENS) for index in range(STREAMS)] for _ in range(2))
    url = f"ws://127.0.0.1:{gateway.port}/v1/realtime"
    await read(url, whole, [])
    await read(url, torn, [rng.randint(1, 60) for _ in range(CUTS)])
    for one, other in zip(whole, torn, strict=True):
        assert one.done
        assert other.done
        ids = [event_id for event_id, _ in other.events]
        assert len(set(ids)) == len(ids)
        assert said(other) == said(one)
        assert all(said(one).values())


async def test_a_cancelled_stream_does_not_go_on(gateway: Gateway) -> None:
    reader = Reader(0, 2000)
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
