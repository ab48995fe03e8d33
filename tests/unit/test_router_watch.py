"""When a router may believe silence: not after it was held up itself, and not without the broker."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from services.router.dispatch import Dispatcher
from services.router.domain.costs import Costs
from services.router.domain.fleet import Fleet
from services.router.domain.policies import make_policy
from services.router.handlers import Handlers
from services.router.memory import Memory
from services.router.metrics import FleetCollector, Metrics
from services.router.parts import Parts
from services.router.settings import Settings
from shared.bus import Bus
from shared.messages import Heartbeat, Load, ModelCard

TICK_S = 0.001


class World:
    """A router's watch with a clock and a broker that the test holds in its hands."""

    def __init__(self) -> None:
        self.now = 100.0
        self.bus = SimpleNamespace(connected=True, new_inbox=lambda: "_INBOX.x")
        settings = Settings(router_tick_s=TICK_S, router_heartbeat_slack_s=0.05, router_warmup_s=0.2)
        self.fleet = Fleet(settings.fleet_limits())
        self.memory = Memory(settings)
        self.registry = CollectorRegistry()
        self.parts = Parts(
            bus=cast(Bus, self.bus),
            fleet=self.fleet,
            policy=make_policy("hybrid"),
            costs=Costs(),
            memory=self.memory,
            metrics=Metrics(self.registry, "hybrid"),
            settings=settings,
            clock=lambda: self.now,
        )
        self.handlers = Handlers(self.parts, Dispatcher(self.parts))
        self.seq = 0

    def beat(self) -> None:
        self.seq += 1
        heartbeat = Heartbeat(
            group="g0",
            instance_id="i",
            seq=self.seq,
            interval_ms=100,
            state="ready",
            model=ModelCard(name="m", context_length=1024),
            load=Load(),
        )
        self.fleet.observe(heartbeat, self.now)

    async def ticks(self, count: int) -> None:
        """Lets the watch look while its clock stands still."""
        for _ in range(count):
            await asyncio.sleep(2 * TICK_S)

    @property
    def ready(self) -> bool:
        return self.fleet.is_ready("g0", self.now)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.beat()
    task = asyncio.create_task(world.handlers.watch())
    await asyncio.sleep(TICK_S)
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def step_until_lost(world: World, limit_s: float) -> float:
    """Seconds until the group is lost, in steps of half a tick."""
    start = world.now
    while world.ready and world.now - start < limit_s:
        world.now += TICK_S / 2
        await asyncio.sleep(TICK_S)
    return world.now - start


async def test_silence_is_a_loss(world: World) -> None:
    assert 0.34 < await step_until_lost(world, 1.0) < 0.6


async def test_a_router_that_was_held_up_waits_for_news_first(world: World) -> None:
    world.now += 5.0  # stopped, swapped out, or busy: heartbeats lie in the socket
    await world.ticks(3)
    assert world.ready
    world.beat()
    assert 0.34 < await step_until_lost(world, 1.0) < 0.6


async def test_a_router_without_the_broker_loses_nobody(world: World) -> None:
    world.bus.connected = False
    await step_until_lost(world, 0.6)
    assert world.ready
    world.bus.connected = True
    assert 0.15 < await step_until_lost(world, 1.0) < 0.5  # after the warm-up, when no heartbeat came


async def test_the_scrape_shows_groups_load_and_balance(world: World) -> None:
    for _ in range(3):
        world.fleet.sent("g0", 10, world.now)
        world.memory.balance.add("g0", world.now)
    world.registry.register(FleetCollector(world.fleet, world.memory))
    value = world.registry.get_sample_value
    assert value("ryz_router_groups", {"state": "ready"}) == 1
    assert value("ryz_router_imbalance") == 0
    assert value("ryz_router_group_requests", {"group": "g0", "kind": "waiting"}) is not None
