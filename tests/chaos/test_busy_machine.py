"""Load is not death: beside busy loops on every core no group is lost, and real faults are found all the same.

The loops run at the niceness of the services and in their session, so each takes as much of a core as a
service that wants one.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.failover.failover_streams import Reading, make_requests, read_once
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.codec import decode
from shared.messages import GroupDown, Heartbeat
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import ServiceProcess
from tests.kits.servers import GuardedNats
from tests.kits.tcp_proxy import TcpProxy
from tests.kits.waiting import until

pytestmark = pytest.mark.timeout(scaled(240, 3600))
MODEL, GROUPS = "demo", ("g0", "g1")
LOOPS = 24
BUSY_S = scaled(30, 600)
STREAMS, TOKENS, STREAM_S = 12, 400, 120.0
FAULTS = scaled(3, 15)
BACK_S = 60.0
FOUND_WITHIN_S = {True: 6.0, False: 1.0}  # by whether loops run


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps so many processes running that never sleep."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


class World:
    """A broker, a router and two groups, of which g0 reaches the broker through a proxy."""

    def __init__(self, proxy: TcpProxy, client: InferenceClient, workers: dict[str, ServiceProcess]) -> None:
        self.proxy, self.client, self.workers = proxy, client, workers
        self.beats: dict[str, tuple[Heartbeat, float]] = {}
        self.lost: list[tuple[float, GroupDown]] = []

    async def beat(self, message: Message) -> None:
        heartbeat = decode(message.data, Heartbeat)
        self.beats[heartbeat.group] = heartbeat, time.monotonic()

    async def down(self, message: Message) -> None:
        self.lost.append((time.monotonic(), decode(message.data, GroupDown)))

    def ready(self, group: str, since: float) -> bool:
        """Whether the group said after that moment that it is ready."""
        heartbeat, at = self.beats.get(group, (None, 0.0))
        return heartbeat is not None and heartbeat.state == "ready" and at > since

    async def read_streams(self, seconds: float) -> list[Reading]:
        """Reads streams again and again for that long; returns all that ended."""
        requests, ended, until_s = make_requests(MODEL, STREAMS, TOKENS), [], time.monotonic() + seconds

        async def read_on(number: int) -> None:
            while time.monotonic() < until_s:
                ended.append(await read_once(self.client, requests[number], number, STREAM_S))

        await asyncio.gather(*(read_on(number) for number in range(STREAMS)))
        return ended


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        server = GuardedNats(tmp_path)
        server.start()
        stack.callback(server.stop, kill=True)
        proxy = await stack.enter_async_context(TcpProxy(server.port))
        near = server.url("worker")
        far = near.replace(f":{server.port}", f":{proxy.port}")
        common = {"RYZ_ENGINE": "null", "RYZ_MODEL_NAME": MODEL, "RYZ_NULL_STEP_DELAY_MS": "10"}
        router = ServiceProcess("router", server.url("router"))
        workers = {
            group: ServiceProcess("worker", url, RYZ_GROUP=group, **common)
            for group, url in zip(GROUPS, (far, near), strict=True)
        }
        for process in (router, *workers.values()):
            stack.callback(process.__exit__)
        bus = await NatsBus.connect(server.url("gateway"), name="gateway/test")
        stack.push_async_callback(bus.close)
        hears = await NatsBus.connect(server.url("router"), name="test")
        stack.push_async_callback(hears.close)
        client = InferenceClient(bus)
        await client.start()
        stack.push_async_callback(client.close)
        world = World(proxy, client, workers)
        await hears.subscribe(subjects.HEARTBEAT_ALL, world.beat)
        await hears.subscribe(subjects.GROUP_DOWN, world.down)
        await until(lambda: all(world.ready(group, 0.0) for group in GROUPS), 40)
        for process in (router, *workers.values()):
            await asyncio.to_thread(process.await_ready)
        yield world


async def test_load_loses_no_group(world: World) -> None:
    before = len(world.lost)
    with busy_loops(LOOPS):
        readings = await world.read_streams(BUSY_S)
    lost = [(down.group, down.reason) for _, down in world.lost[before:]]
    record("busy", loops=LOOPS, seconds=BUSY_S, streams=len(readings), lost=lost)
    print(f"{LOOPS} loops, {BUSY_S} s, {len(readings)} streams, lost: {lost}", flush=True)
    assert not lost
    assert [reading.error for reading in readings if reading.answer is None] == []
    assert not any(reading.interruptions for reading in readings)
