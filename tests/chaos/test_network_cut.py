"""The network between one leader and the broker is cut, stalls, or is slow; the other group is unaffected.

The streams of the disconnected group continue unchanged on the other group. When it reconnects, it drops the
moved requests, and clients ignore its late frames. A slow network alone is not a loss.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.failover.failover_streams import Reading, make_requests, read_once, same_answer
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import Completion, InferenceClient
from shared.codec import decode
from shared.messages import GenerateRequest, GroupDown, Heartbeat
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import PATIENT, ServiceProcess
from tests.kits.servers import GuardedNats
from tests.kits.tcp_proxy import TcpProxy
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.timeout(scaled(300, 900))
MODEL, CUT_OFF, OTHER = "demo", "g0", "g1"
STEP_MS = "10"
STREAMS, TOKENS = 12, scaled(900, 1000)  # at least nine seconds; a fault takes five
TIMES = scaled(1, 10)
CUT_S = 1.0
ROUTER = PATIENT | {
    "RYZ_ROUTER_POLICY": "least_loaded",
    "RYZ_ROUTER_HEARTBEAT_SLACK_S": scaled("3", "0.175"),
}
STREAM_S = 60.0


class World:
    """A broker, a router and two groups, one of which reaches the broker through a proxy."""

    def __init__(self, proxy: TcpProxy, client: InferenceClient, expected: list[Completion]) -> None:
        self.proxy, self.client, self.expected = proxy, client, expected
        self.beats: dict[str, Heartbeat] = {}
        self.lost: list[GroupDown] = []
        self.requests: list[GenerateRequest] = make_requests(MODEL, STREAMS, TOKENS)

    async def begin(self) -> list["asyncio.Task[Reading]"]:
        """Starts all requests, each in a task, and waits until both groups have some."""
        tasks = [
            asyncio.create_task(read_once(self.client, request, number, STREAM_S))
            for number, request in enumerate(self.requests)
        ]
        await until(lambda: all(self.running(group) for group in (CUT_OFF, OTHER)))
        await asyncio.sleep(0.5)
        return tasks

    async def without_a_fault(self) -> None:
        """Records the expected answers unless an earlier test has done so."""
        if not self.expected:
            self.expected += [one.answer for one in await self.whole(await self.begin()) if one.answer]

    async def whole(self, tasks: list["asyncio.Task[Reading]"]) -> list[Reading]:
        """Waits for all requests and checks their answers."""
        readings = await asyncio.gather(*tasks)
        for reading in readings:
            assert reading.answer is not None, reading.error
            assert not self.expected or same_answer(reading.answer, self.expected[reading.request]), (
                reading.request
            )
        return readings

    def running(self, group: str) -> int:
        """Number of running and waiting requests in the group's last heartbeat."""
        load = self.beats[group].load
        return load.running + load.waiting

    async def beat(self, message: Message) -> None:
        heartbeat = decode(message.data, Heartbeat)
        self.beats[heartbeat.group] = heartbeat

    async def down(self, message: Message) -> None:
        self.lost.append(decode(message.data, GroupDown))


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    """The expected answers, recorded by the module's first test."""
    return []


@pytest.fixture
async def world(tmp_path: Path, expected: list[Completion]) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        server = GuardedNats(tmp_path)
        server.start()
        stack.callback(server.stop, kill=True)
        proxy = await stack.enter_async_context(TcpProxy(server.port))
        near = server.url("worker")
        far = near.replace(f":{server.port}", f":{proxy.port}")
        common = {"RYZ_ENGINE": "null", "RYZ_MODEL_NAME": MODEL, "RYZ_NULL_STEP_DELAY_MS": STEP_MS}
        processes = [
            ServiceProcess("router", server.url("router"), **ROUTER),
            ServiceProcess("worker", far, RYZ_GROUP=CUT_OFF, **common),
            ServiceProcess("worker", near, RYZ_GROUP=OTHER, **common),
        ]
        for process in processes:
            stack.callback(process.__exit__)
        bus = await NatsBus.connect(server.url("gateway"), name="gateway/test")
        stack.push_async_callback(bus.close)
        hears = await NatsBus.connect(server.url("router"), name="test")
        stack.push_async_callback(hears.close)
        client = InferenceClient(bus)
        await client.start()
        stack.push_async_callback(client.close)
        world = World(proxy, client, expected)
        await hears.subscribe(subjects.HEARTBEAT_ALL, world.beat)
        await hears.subscribe(subjects.GROUP_DOWN, world.down)
        await until(lambda: sorted(world.beats) == [CUT_OFF, OTHER])
        await until(lambda: all(beat.state == "ready" for beat in world.beats.values()))
        for process in processes:
            await asyncio.to_thread(process.await_ready)
        yield world


async def served_by(world: World, group: str) -> None:
    """Waits until the group serves requests again."""
    short = make_requests(MODEL, 4, 4)

    async def took() -> bool:
        readings = await asyncio.gather(*(read_once(world.client, one, 0, 10) for one in short))
        return any(one.answer is not None and one.answer.group == group for one in readings)

    async with asyncio.timeout(PATIENCE_S):
        while not await took():  # noqa: ASYNC110 (it is asked over the network)
            await asyncio.sleep(0.1)


Fault = Callable[[TcpProxy], None]


def reset(proxy: TcpProxy) -> None:
    """Closes the connections, visibly to both ends, and refuses new ones."""
    proxy.cut(refuse=True)


def silence(proxy: TcpProxy) -> None:
    """Stops all bytes without closing a connection."""
    proxy.stall()


@pytest.mark.parametrize("fault", [reset, silence])
async def test_a_leader_that_is_cut_off(world: World, fault: Fault) -> None:
    await world.without_a_fault()
    assert not world.lost
    for _ in range(TIMES):
        before, ignored = world.client.stats.lost, world.client.stats.ignored
        tasks = await world.begin()
        fault(world.proxy)
        await until(lambda: any(down.group == CUT_OFF for down in world.lost))
        await until(lambda: world.running(OTHER) >= STREAMS)  # all moved requests have arrived
        await asyncio.sleep(CUT_S)
        world.proxy.resume()
        await until(lambda: world.running(CUT_OFF) == 0)
        assert world.client.num_open == STREAMS  # dropped by the group, not ended
        await world.whole(tasks)
        assert world.client.stats.lost > before
        assert fault is reset or world.client.stats.ignored > ignored  # frames delayed by the stall
        await served_by(world, CUT_OFF)
        assert {down.group for down in world.lost} == {CUT_OFF}
    print({name: getattr(world.client.stats, name) for name in ("lost", "resumed", "ignored", "republished")})


async def test_a_slow_network_is_no_loss(world: World) -> None:
    await world.without_a_fault()
    for _ in range(TIMES):
        tasks = await world.begin()
        world.proxy.delay_s = 0.05
        readings = await world.whole(tasks)
        world.proxy.delay_s = 0.0
        assert not world.lost
        assert not any(reading.interruptions for reading in readings)
