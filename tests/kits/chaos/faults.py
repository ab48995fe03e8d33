"""Kills ranks and leaders of a stack one after another, each when all groups are ready again."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

from benchmarks.failover.fleet import FleetProbe
from shared.bus.nats import NatsBus
from tests.kits.waiting import PATIENCE_S, until

SETTLE_S = 2.2  # a service that was ready this long before it died is restarted without a longer pause
Victim = Literal["rank", "leader"]


@dataclass(frozen=True, slots=True)
class Killed:
    """The rank or leader killed, and the seconds until its group was ready again."""

    group: str
    victim: Victim
    back_s: float


def kill_one_by_one(urls: Mapping[str, str], victims: list[Victim], seed: int = 0) -> list[Killed]:
    """Kills the victims one after another, each of a random group.

    Args:
        urls: The broker's URLs by user; see `StackState`.
        victims: What to kill, in order.
        seed: Seed of the choices.

    Returns:
        One entry for each victim, once all groups are ready again.
    """
    return asyncio.run(_kill(urls, victims, random.Random(seed)))


async def _kill(urls: Mapping[str, str], victims: list[Victim], chance: random.Random) -> list[Killed]:
    async with AsyncExitStack() as stack:
        asks = await NatsBus.connect(urls["cli"], name="chaos")
        stack.push_async_callback(asks.close)
        hears = await NatsBus.connect(urls["router"], name="chaos")
        stack.push_async_callback(hears.close)
        fleet = FleetProbe(hears, asks)
        await fleet.listen()
        await asyncio.sleep(0.3)
        killed = []
        for victim in victims:
            pids = await all_ready(fleet)
            await asyncio.sleep(0.3 + chance.random() * 0.5 + SETTLE_S * (victim == "leader"))
            group = chance.choice(sorted(pids))
            leader, ranks = pids[group]
            at = time.monotonic()
            os.kill(leader if victim == "leader" else chance.choice(ranks), signal.SIGKILL)
            await fleet.await_away(group, at)
            await _back(fleet, group, at)
            killed.append(Killed(group, victim, time.monotonic() - at))
        await all_ready(fleet)
        return killed


async def _back(fleet: FleetProbe, group: str, since: float) -> None:
    await until(lambda: fleet.ready(group, since), PATIENCE_S)


async def all_ready(fleet: FleetProbe) -> dict[str, tuple[int, list[int]]]:
    """Waits until all groups are ready; returns the process ids of each group's leader and ranks."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            lately = time.monotonic() - 1
            if fleet.beats and all(fleet.ready(group, lately) for group in fleet.beats):
                pids = await fleet.pids()
                if pids.keys() == fleet.beats.keys():
                    return pids
            await asyncio.sleep(0.05)
