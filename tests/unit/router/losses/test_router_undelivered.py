"""Reports of the broker that nothing took a request, also late ones; heartbeats that change a group."""

import msgpack
from prometheus_client import CollectorRegistry

from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.domain.groups.fleet import Fleet
from services.router.domain.policies import make_policy
from services.router.domain.policies.costs import Costs
from services.router.metrics import RouterMetrics
from services.router.settings import RouterSettings
from services.router.state import RouterState
from shared import subjects
from shared.bus import Message
from shared.client.calls.limit_leases import LimitLeases
from shared.messages import Heartbeat, Load, ModelCard, State
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.handlers import router_handlers

NOW = 100.0
REQUEST = Message(
    subjects.generate("demo"),
    msgpack.packb({"request_id": "r", "model": "demo", "prompt": "x", "reply_to": "_INBOX.u.f"}),
    reply="_INBOX.u.r",
)


def heartbeat(group: str, seq: int, state: State, instance: int = 1) -> Heartbeat:
    return Heartbeat(
        group=group,
        instance_id=f"{group}-{instance}",
        seq=seq,
        interval_ms=25,
        state=state,
        model=ModelCard(name="demo", context_length=1024),
        load=Load(max_running=4, max_waiting=4),
    )


class World:
    """A router, and groups that nothing listens for."""

    def __init__(self, bus: MemoryBus, *groups: str) -> None:
        made = RouterSettings()
        self.registry = CollectorRegistry()
        self.context = RouterContext(
            bus,
            Fleet(made.fleet_limits()),
            make_policy("round_robin"),
            Costs(),
            RouterState(made),
            RouterMetrics(self.registry, "round_robin"),
            made,
            lambda: NOW,
            lambda _: 0.0,
        )
        self.dispatcher = Dispatcher(self.context)
        leases = LimitLeases(bus, self.context.state.accounts, "r")
        outside = MemoryBus(bus.broker)
        self.handlers = router_handlers(self.context, outside, leases, self.dispatcher).requests
        for group in groups:
            self.context.fleet.observe(heartbeat(group, 1, "ready"), NOW)

    async def request(self) -> str:
        """The group that the request is sent to."""
        waits = self.handlers.on_generate(REQUEST)
        if waits is not None:
            await waits
        forward = self.context.state.forwards.get("default=r-0", NOW)
        assert forward is not None
        return forward.group

    async def report(self, number: int) -> None:
        """The broker's word that nothing took what was sent by that number."""
        subject = f"{self.dispatcher.inbox}.{number}.default=r-0"
        await self.handlers.on_undelivered(Message(subject, b"", no_responders=True))

    def strays(self) -> float:
        return self.registry.get_sample_value("ryz_router_events_total", {"event": "stray_reply"}) or 0.0


async def test_a_request_that_nothing_took_goes_to_another_group(memory_bus: MemoryBus) -> None:
    world = World(memory_bus, "g0", "g1")
    first = await world.request()
    await world.report(1)
    forward = world.context.state.forwards.get("default=r-0", NOW)
    assert forward is not None
    assert {first, forward.group} == {"g0", "g1"}
    assert not world.context.fleet.is_ready(first, NOW)


async def test_a_report_of_an_earlier_sending_does_not_count_against_the_next_group(
    memory_bus: MemoryBus,
) -> None:
    """The router heard of the leader's end, and sent a copy elsewhere, before the broker's report came."""
    world = World(memory_bus, "g0", "g1")
    first = await world.request()
    world.context.fleet.on_disconnect(f"{first}-1", NOW)
    second = await world.request()
    assert {first, second} == {"g0", "g1"}
    await world.report(1)
    assert world.context.fleet.is_ready(second, NOW)
    assert world.strays() == 1
    forward = world.context.state.forwards.get("default=r-0", NOW)
    assert forward is not None
    assert forward.group == second


async def test_a_heartbeat_that_changes_a_group_lets_no_later_one_wait(memory_bus: MemoryBus) -> None:
    """What is awaited moves later heartbeats behind an echo, which then proves a silence that was none."""
    world = World(memory_bus, "g0")
    invalid = Message(subjects.heartbeat("g0"), b"")
    take = world.handlers.on_heartbeat
    assert take(heartbeat("g0", 2, "draining"), invalid) is None
    assert take(heartbeat("g0", 3, "ready"), invalid) is None
    loss = take(heartbeat("g0", 1, "ready", instance=2), invalid)
    assert loss is not None
    await loss
