"""Load is not death: beside busy loops no group is lost, and real faults are found all the same.

The loops run at the niceness of the services and in their session, so each takes as much of a core as a
service that wants one.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from benchmarks.failover.streams import Reading, make_requests, read_once
from shared.client import InferenceClient
from tests.kits.chaos.busy_loops import busy_loops
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.two_groups import GROUPS, MODEL, TwoGroups, two_groups
from tests.kits.waiting import until

pytestmark = pytest.mark.timeout(scaled(300, 3600))
LOOPS = scaled(8, 24)
BUSY_S = scaled(8, 600)
STREAMS, TOKENS, STREAM_S = 12, 400, 120.0
FAULTS = scaled(1, 15)
BESIDE = scaled([LOOPS], [0, LOOPS])
BACK_S = 90.0
# seconds until a fault is known; on an idle machine 0.01 for a kill, 0.3 for the others
FOUND_WITHIN_S = {
    0: 6.0,
    LOOPS: 12.0,
}  # other tests run beside this one; `ryz bench failover` has the figures


async def time_to_find(world: TwoGroups, group: str, fault: Callable[[], None]) -> float:
    """Causes a fault of a group, and returns the seconds until its loss is announced."""
    number, began = len(world.lost), time.monotonic()
    fault()
    await until(lambda: any(down.group == group for _, down in world.lost[number:]), 30)
    return next(at for at, down in world.lost[number:] if down.group == group) - began


async def read_streams(client: InferenceClient, seconds: float) -> list[Reading]:
    """Reads streams again and again for that long; returns all that ended."""
    requests, ended, until_s = make_requests(MODEL, STREAMS, TOKENS), [], time.monotonic() + seconds

    async def read_on(number: int) -> None:
        while time.monotonic() < until_s:
            ended.append(await read_once(client, requests[number], number, STREAM_S))

    await asyncio.gather(*(read_on(number) for number in range(STREAMS)))
    return ended


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[TwoGroups]:
    """With the parameter True g0 reaches the broker through the proxy."""
    async with two_groups(tmp_path, proxied=getattr(request, "param", False)) as groups:
        yield groups


@pytest.mark.parametrize("world", [True], indirect=True)
async def test_load_loses_no_group(world: TwoGroups) -> None:
    """g0's heartbeats also pass through the proxy, which has no core of its own either."""
    before = len(world.lost)
    with busy_loops(LOOPS):
        readings = await read_streams(world.client, BUSY_S)
    lost = [(down.group, down.reason, down.cause) for _, down in world.lost[before:]]
    moved = [one.reason for reading in readings for one in reading.interruptions]
    errors = [reading.error for reading in readings if reading.answer is None]
    record("busy", loops=LOOPS, seconds=BUSY_S, streams=len(readings), lost=lost, moved=moved, errors=errors)
    print(f"{len(readings)} streams, lost: {lost}, moved: {moved}, errors: {errors}", flush=True)
    assert not lost
    assert not errors


async def back(world: TwoGroups, group: str) -> None:
    """Waits until the group is ready, and what routers remember of its last fault is over."""
    since = time.monotonic()
    await until(lambda: world.ready(group, since), BACK_S)
    await asyncio.sleep(2.0)


def judge(fault: str, loops: int, found: list[float]) -> None:
    """Prints and keeps the times, and checks their median."""
    times = sorted(round(1000 * one) for one in found)
    record(f"{fault}_{loops}", ms=times)
    print(f"{fault} beside {loops} loops: found after {times} ms", flush=True)
    assert statistics.median(found) < FOUND_WITHIN_S[loops]


@pytest.mark.parametrize("loops", BESIDE)
async def test_killed_and_frozen_leaders_are_found(world: TwoGroups, loops: int) -> None:
    frozen, killed = [], []
    with busy_loops(loops):
        for _ in range(FAULTS):
            await back(world, "g0")
            pid = world.workers["g0"].process.pid
            frozen.append(await time_to_find(world, "g0", lambda pid=pid: os.kill(pid, signal.SIGSTOP)))  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
        await back(world, "g0")
        for group in GROUPS:  # a new leader would take minutes to start beside the loops
            killed.append(await time_to_find(world, group, world.workers[group].process.kill))
    judge("frozen", loops, frozen)
    judge("killed", loops, killed)


@pytest.mark.parametrize("world", [True], indirect=True)
@pytest.mark.parametrize("loops", BESIDE)
async def test_a_cut_network_is_found(world: TwoGroups, loops: int) -> None:
    """No connection is closed: there is nothing but the silence."""
    found = []
    with busy_loops(loops):
        for _ in range(FAULTS):
            await back(world, "g0")
            found.append(await time_to_find(world, "g0", world.proxy.stall))
            await asyncio.sleep(0.5)
            world.proxy.resume()
    judge("cut", loops, found)
