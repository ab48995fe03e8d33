"""When silence is a loss: not after the router itself was held up, and not without the broker.

The test sets the clock. No test waits, and the load of the machine has no effect.
"""

import struct
from collections.abc import Mapping
from typing import cast

from prometheus_client import CollectorRegistry

from services.router.context import RouterContext
from services.router.domain.groups.fleet import Fleet
from services.router.domain.policies import make_policy
from services.router.domain.policies.costs import Costs
from services.router.domain.running_units import RunningUnits
from services.router.losses import LossReports
from services.router.metrics import FleetCollector, RouterMetrics
from services.router.settings import RouterSettings
from services.router.state import RouterState
from services.router.watch import FleetWatch
from shared import subjects
from shared.bus import Bus, Message
from shared.codec import decode
from shared.errors import Unavailable
from shared.messages import GroupDown, Heartbeat, Load, ModelCard
from tests.kits.constants import settings_with_constants

TICK_S = 0.025
BEAT_S = 0.025
LOST_S = 2 * (3 * BEAT_S + 0.175)  # default settings; doubled, since there is no other group


class Broker:
    """Keeps messages until the router reads them. Heartbeats and echoes stay in order."""

    def __init__(self) -> None:
        self.connected = True
        self.restored_at = 0.0
        self.queue: list[Message] = []
        self.reported: list[GroupDown] = []

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if not self.connected:
            raise Unavailable("no broker")
        if subject == subjects.GROUP_DOWN:
            self.reported.append(decode(data, GroupDown))
        else:
            self.queue.append(Message(subject, data))


class World:
    """A router that watches one group, which beats while `beating` is set. The test advances the clock."""

    def __init__(self) -> None:
        self.now, self.pressure = 100.0, 0.0
        self.broker = Broker()
        settings = settings_with_constants(RouterSettings, {"tick_s": TICK_S})
        self.fleet = Fleet(settings.fleet_limits())
        self.state = RouterState(settings)
        self.registry = CollectorRegistry()
        self.context = RouterContext(
            bus=cast(Bus, self.broker),
            fleet=self.fleet,
            policy=make_policy("hybrid"),
            costs=Costs(),
            state=self.state,
            metrics=RouterMetrics(self.registry, "hybrid"),
            settings=settings,
            clock=lambda: self.now,
            pressure=lambda _: self.pressure,
        )
        self.watch = FleetWatch(self.context, LossReports(self.context, RunningUnits(lambda _: None, "")))
        self.beating = True
        self.seq = 0

    def beat(self) -> None:
        self.seq += 1
        self.broker.queue.append(Message(subjects.heartbeat("g0"), struct.pack("q", self.seq)))

    async def read(self, at_most: int = 1_000_000) -> None:
        """Lets the router read up to `at_most` queued messages."""
        for message in self.broker.queue[:at_most]:
            if message.subject == subjects.heartbeat("g0"):
                self.hear(struct.unpack("q", message.data)[0])
            else:
                waits = self.watch.on_echo(message)
                if waits is not None:
                    await waits
        del self.broker.queue[:at_most]

    def hear(self, seq: int) -> None:
        heartbeat = Heartbeat(
            group="g0",
            instance_id="i",
            seq=seq,
            interval_ms=round(BEAT_S * 1000),
            state="ready",
            model=ModelCard(name="m", context_length=1024),
            load=Load(),
        )
        self.fleet.observe(heartbeat, self.now)

    async def go(self, seconds: float, *, reads: bool = True) -> None:
        """Advances the clock with ticks on time. The group beats between ticks."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += TICK_S
            if self.beating and self.broker.connected:
                self.beat()
            await self.watch.tick(self.now)
            if reads:
                await self.read()

    async def until_lost(self, limit_s: float = 3.0) -> float:
        """Ticks until the group is lost, and returns the seconds that this took."""
        start = self.now
        while self.ready and self.now - start < limit_s:
            await self.go(TICK_S)
        return self.now - start

    @property
    def ready(self) -> bool:
        return self.fleet.is_ready("g0", self.now)


async def started() -> World:
    world = World()
    await world.go(0.5)
    assert world.ready
    return world


async def test_silence_is_a_loss_and_everybody_hears_of_it_once() -> None:
    world = await started()
    world.beating = False
    assert LOST_S <= await world.until_lost() <= LOST_S + 2 * TICK_S
    await world.go(1.0)
    (reported,) = world.broker.reported
    assert (reported.group, reported.instance_id, reported.reason) == ("g0", "i", "silent")
    assert reported.router_id == world.context.settings.instance_id
    lost = {"reason": "silent", "group": "g0"}
    assert world.registry.get_sample_value("ryz_router_groups_lost_total", lost) == 1


async def test_on_a_busy_machine_the_router_waits_longer_though_the_group_said_nothing_of_it() -> None:
    """The machine became busy after the group's last heartbeat came through. The time ends with the load."""
    world = await started()
    world.beating, world.pressure = False, 1.0
    await world.go(3.5)
    assert world.ready
    world.beating = True
    await world.go(0.1)
    world.pressure = 0.1
    await world.go(10.0)
    world.beating = False
    assert LOST_S <= await world.until_lost() <= LOST_S + 2 * TICK_S


async def test_a_router_that_stood_still_finds_the_news_in_its_socket() -> None:
    """The router stops for five seconds while the group beats. Its tick comes before it reads the socket."""
    world = await started()
    for _ in range(200):
        world.beat()
    world.now += 5.0
    await world.watch.tick(world.now)
    assert world.ready
    await world.read()
    await world.go(0.5)
    assert world.ready
    assert not world.broker.reported


async def test_news_that_waits_unread_is_not_silence() -> None:
    """The ticks are on time, but other messages keep the router from reading for a second."""
    world = await started()
    await world.go(1.0, reads=False)
    assert len(world.broker.queue) >= 80
    while world.broker.queue:
        await world.read(at_most=3)
        assert world.ready
    assert not world.broker.reported


async def test_a_machine_that_stood_still_is_no_groups_silence() -> None:
    """Router and group were held up together: no message is queued, and the group needs time to beat."""
    world = await started()
    world.beating = False
    world.now += 2.0
    await world.go(LOST_S - 2 * TICK_S)
    assert world.ready
    world.beating = True
    await world.go(1.0)
    assert world.ready
    assert not world.broker.reported


async def test_a_machine_that_stumbles_again_and_again_loses_no_group() -> None:
    world = await started()
    for _ in range(200):
        world.beating = False
        world.now += 0.3
        await world.go(2 * TICK_S)
        world.beating = True
        await world.go(TICK_S)
        assert world.ready


async def test_a_group_that_died_during_a_hold_up_is_found_soon_after() -> None:
    world = await started()
    world.beating = False
    world.now += 1.0
    assert await world.until_lost() <= LOST_S + 3 * TICK_S


async def test_after_a_reconnect_groups_have_time_to_come_back() -> None:
    world = await started()
    world.broker.connected = False
    await world.go(1.0)
    assert world.ready
    world.broker.connected, world.broker.restored_at, world.beating = True, 7.0, False
    await world.go(1.4)
    assert world.ready
    assert 0.05 <= await world.until_lost() < 0.3


async def test_a_connection_that_was_away_between_two_ticks_counts_as_well() -> None:
    world = await started()
    world.broker.restored_at = 7.0
    world.beating = False
    await world.go(1.4)
    assert world.ready


async def test_a_router_that_cannot_hear_itself_loses_no_group_and_says_so() -> None:
    world = await started()
    for _ in range(200):
        await world.go(TICK_S, reads=False)
        world.broker.queue.clear()
    assert world.ready
    assert world.registry.get_sample_value("ryz_router_events_total", {"event": "deaf"}) == 1
    await world.go(TICK_S)
    assert world.watch.on_echo(Message("_INBOX.x.echo", b"short")) is None


async def test_the_scrape_shows_groups_load_and_balance() -> None:
    world = await started()
    for _ in range(3):
        world.fleet.count_sent("g0", 10, world.now)
        world.state.balance.add("g0", world.now)
    world.registry.register(FleetCollector(world.fleet, world.state))
    value = world.registry.get_sample_value
    assert value("ryz_router_groups", {"state": "ready"}) == 1
    assert value("ryz_router_imbalance") == 0
    assert value("ryz_router_group_requests", {"group": "g0", "kind": "waiting"}) is not None
