"""A group on another host: another network namespace, whose cable is pulled: then there is only silence."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode
from shared.messages import GroupDown, Heartbeat
from tests.kits.chaos.services import ServiceProcess
from tests.kits.engine.two_hosts import host_beside, set_cable, why_not
from tests.kits.servers import NatsServer, find_binary
from tests.kits.waiting import until

REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(300)]
FOUND_S = 6.0  # 0.3 on an idle machine; on a busy one silence has up to 3 s


class World:
    """A group on the other host; router and broker on this one, with another group."""

    def __init__(self, namespace: str, leader_pid: int) -> None:
        self.namespace, self.leader_pid = namespace, leader_pid
        self.beats: dict[str, float] = {}
        self.lost: list[tuple[float, GroupDown]] = []

    async def beat(self, message: Message) -> None:
        heartbeat = decode(message.data, Heartbeat)
        if heartbeat.state == "ready":
            self.beats[heartbeat.group] = time.monotonic()

    async def down(self, message: Message) -> None:
        self.lost.append((time.monotonic(), decode(message.data, GroupDown)))

    async def found(self, began: float) -> GroupDown:
        """Waits for the next loss, prints and checks how long it took."""
        await until(lambda: any(at > began for at, _ in self.lost), 30)
        at, down = next((at, down) for at, down in self.lost if at > began)
        print(f"{down.reason} {down.cause}: found after {1000 * (at - began):.0f} ms")
        assert down.group == "far"
        assert at - began < FOUND_S
        return down

    async def back(self) -> None:
        """Waits until the group says that it is ready."""
        since = time.monotonic()
        await until(lambda: self.beats.get("far", 0.0) > since, 60)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        here, prefix, namespace = stack.enter_context(host_beside())
        server = NatsServer(tmp_path)
        server.command = [find_binary("nats-server"), "-a", "0.0.0.0", "-p", str(server.port)]
        server.start()
        stack.callback(server.stop, kill=True)
        router = ServiceProcess("router", server.url)
        url = f"nats://{here}:{server.port}"
        null = {"RYZ_ENGINE": "null", "RYZ_MODEL_NAME": "m"}
        far = ServiceProcess("worker", url, prefix, RYZ_GROUP="far", **null)
        near = ServiceProcess("worker", server.url, RYZ_GROUP="near", **null)
        for process in (router, far, near):
            stack.callback(process.__exit__)
        bus = await NatsBus.connect(server.url, name="test")
        stack.push_async_callback(bus.close)
        world = World(namespace, far.process.pid)  # `ip netns exec` becomes the command
        await bus.subscribe(subjects.HEARTBEAT_ALL, world.beat)
        await bus.subscribe(subjects.GROUP_DOWN, world.down)
        await asyncio.to_thread(router.await_ready)
        await until(lambda: sorted(world.beats) == ["far", "near"], 60)
        await asyncio.sleep(2.0)
        yield world


async def test_cut_cables_frozen_and_killed_leaders_of_another_host_are_found(world: World) -> None:
    began = time.monotonic()
    set_cable(world.namespace, "down")
    assert (await world.found(began)).reason == "silent"
    set_cable(world.namespace, "up")
    await world.back()
    began = time.monotonic()
    os.kill(world.leader_pid, signal.SIGSTOP)
    assert (await world.found(began)).cause == "frozen"
    os.kill(world.leader_pid, signal.SIGCONT)
    await world.back()
    began = time.monotonic()
    os.kill(world.leader_pid, signal.SIGKILL)
    assert (await world.found(began)).cause == "ended"  # this broker reports no disconnects
