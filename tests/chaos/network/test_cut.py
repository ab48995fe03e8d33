"""The network between one leader and the broker is cut, stalls, or is slow; the other group is unaffected.

The streams of the disconnected group continue unchanged on the other group. When it reconnects, it drops the
moved requests, and clients ignore its late frames. A slow network alone is not a loss.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.failover.streams import Reading, make_requests, read_once, same_answer
from shared.client import Completion
from shared.messages import GenerateRequest
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import PATIENT
from tests.kits.chaos.two_groups import GROUPS, MODEL, TwoGroups, two_groups
from tests.kits.proxies.threaded import ThreadedProxy
from tests.kits.waiting import until

pytestmark = pytest.mark.timeout(scaled(300, 900))
CUT_OFF, OTHER = GROUPS
STREAMS, TOKENS = 12, scaled(900, 1000)  # at least nine seconds; a fault takes five
TIMES = scaled(1, 10)
CUT_S = 1.0
ROUTER = PATIENT | {
    "RYZ_ROUTER_POLICY": "least_loaded",
    "RYZ_ROUTER_HEARTBEAT_SLACK_S": scaled("3", "0.175"),
}
STREAM_S = 60.0


class World:
    """Two groups, one of which reaches the broker through a proxy, and the answers that are expected."""

    def __init__(self, groups: TwoGroups, expected: list[Completion]) -> None:
        self.groups, self.proxy, self.client, self.expected = groups, groups.proxy, groups.client, expected
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

    async def all_moved(self, tasks: Sequence["asyncio.Task[Reading]"], losses: int) -> None:
        """Waits for a loss beyond those, and until the other group has or had all choices of all requests."""
        choices = [request.sampling.n for request in self.requests]

        def has_all() -> bool:
            ended = sum(n for n, task in zip(choices, tasks, strict=True) if task.done())
            return self.running(OTHER) + ended >= sum(choices)

        await until(lambda: any(down.group == CUT_OFF for _, down in self.groups.lost[losses:]))
        await until(has_all)

    def running(self, group: str) -> int:
        """Number of running and waiting choices in the group's last heartbeat."""
        load = self.groups.beats[group][0].load
        return load.running + load.waiting

    @property
    def lost(self) -> set[str]:
        """The groups that were announced as lost."""
        return {down.group for _, down in self.groups.lost}


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    """The expected answers, recorded by the module's first test."""
    return []


@pytest.fixture
async def world(tmp_path: Path, expected: list[Completion]) -> AsyncIterator[World]:
    async with two_groups(tmp_path, proxied=True, router_settings=ROUTER) as groups:
        yield World(groups, expected)


async def served_by(world: World, group: str) -> None:
    """Waits until the group serves requests again."""
    short = make_requests(MODEL, 4, 4)

    async def took() -> bool:
        readings = await asyncio.gather(*(read_once(world.client, one, 0, 10) for one in short))
        return any(one.answer is not None and one.answer.group == group for one in readings)

    await until(took, longest_s=0.1)


Fault = Callable[[ThreadedProxy], None]


def reset(proxy: ThreadedProxy) -> None:
    """Closes the connections, visibly to both ends, and refuses new ones."""
    proxy.refuse()


def silence(proxy: ThreadedProxy) -> None:
    """Stops all bytes without closing a connection."""
    proxy.stall()


@pytest.mark.parametrize("fault", [reset, silence])
async def test_a_leader_that_is_cut_off(world: World, fault: Fault) -> None:
    await world.without_a_fault()
    assert not world.lost
    for _ in range(TIMES):
        before = world.client.stats.lost
        losses = len(world.groups.lost)
        tasks = await world.begin()
        fault(world.proxy)
        await world.all_moved(tasks, losses)
        await asyncio.sleep(CUT_S)
        world.proxy.resume()
        await until(lambda: world.running(CUT_OFF) == 0)
        ended = [task.result().answer for task in tasks if task.done()]
        assert all(ended)
        assert world.client.num_open + len(ended) == STREAMS  # dropped by the group, not ended
        await world.whole(tasks)
        assert world.client.stats.lost > before
        await served_by(world, CUT_OFF)
        assert world.lost == {CUT_OFF}
    print({name: getattr(world.client.stats, name) for name in ("lost", "resumed", "ignored", "republished")})


async def test_a_slow_network_is_no_loss(world: World) -> None:
    await world.without_a_fault()
    for _ in range(TIMES):
        tasks = await world.begin()
        world.proxy.slow(0.05)
        readings = await world.whole(tasks)
        world.proxy.slow(0.0)
        assert not world.lost
        assert not any(reading.interruptions for reading in readings)
