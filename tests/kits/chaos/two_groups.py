"""A broker, a router and two groups with null engines; one of them may reach the broker through a proxy."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.codec import decode
from shared.messages import GroupDown, Heartbeat
from tests.kits.chaos.services import ServiceProcess
from tests.kits.proxies.threaded import ThreadedProxy
from tests.kits.servers import GuardedNats
from tests.kits.waiting import until

MODEL, GROUPS = "demo", ("g0", "g1")
_STEP_MS = "10"


class TwoGroups:
    """The processes, and what their heartbeats and the router say.

    Attributes:
        workers: The leaders' processes, by group.
        beats: The last heartbeat of each group, and when it came.
        lost: Losses as they were announced, and when.
    """

    def __init__(
        self, proxy: ThreadedProxy, client: InferenceClient, workers: dict[str, ServiceProcess]
    ) -> None:
        self.proxy, self.client, self.workers = proxy, client, workers
        self.beats: dict[str, tuple[Heartbeat, float]] = {}
        self.lost: list[tuple[float, GroupDown]] = []

    async def take_heartbeat(self, message: Message) -> None:
        heartbeat = decode(message.data, Heartbeat)
        self.beats[heartbeat.group] = heartbeat, time.monotonic()

    async def take_loss(self, message: Message) -> None:
        self.lost.append((time.monotonic(), decode(message.data, GroupDown)))

    def ready(self, group: str, since: float) -> bool:
        """Whether the group said after that moment that it is ready."""
        heartbeat, at = self.beats.get(group, (None, 0.0))
        return heartbeat is not None and heartbeat.state == "ready" and at > since


@asynccontextmanager
async def two_groups(
    directory: Path, *, proxied: bool, router_settings: Mapping[str, str] | None = None
) -> AsyncIterator[TwoGroups]:
    """Starts all of it, and ends it afterwards. Both groups are ready.

    Args:
        directory: For the broker's files.
        proxied: The first group reaches the broker through the proxy.
        router_settings: `RYZ_` variables.
    """
    async with AsyncExitStack() as stack:
        server = GuardedNats(directory)
        server.start()
        stack.callback(server.stop, kill=True)
        proxy = stack.enter_context(ThreadedProxy(server.port))
        near = server.url("worker")
        far = near.replace(f":{server.port}", f":{proxy.port}") if proxied else near
        common = {"RYZ_ENGINE": "null", "RYZ_MODEL_NAME": MODEL, "RYZ_NULL_STEP_DELAY_MS": _STEP_MS}
        router = ServiceProcess("router", server.url("router"), **(router_settings or {}))
        stack.callback(router.__exit__)
        workers: dict[str, ServiceProcess] = {}
        for group, url in zip(GROUPS, (far, near), strict=True):
            workers[group] = ServiceProcess("worker", url, RYZ_GROUP=group, **common)
            stack.callback(workers[group].__exit__)
        bus = await NatsBus.connect(server.url("gateway"), name="gateway/test")
        stack.push_async_callback(bus.close)
        hears = await NatsBus.connect(server.url("router"), name="test")
        stack.push_async_callback(hears.close)
        client = InferenceClient(bus)
        await client.start()
        stack.push_async_callback(client.close)
        groups = TwoGroups(proxy, client, workers)
        await hears.subscribe(subjects.HEARTBEAT_ALL, groups.take_heartbeat)
        await hears.subscribe(subjects.GROUP_DOWN, groups.take_loss)
        await until(lambda: all(groups.ready(group, 0.0) for group in GROUPS))
        for process in (router, *workers.values()):
            await asyncio.to_thread(process.await_ready)
        yield groups
