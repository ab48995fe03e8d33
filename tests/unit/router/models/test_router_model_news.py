"""What wakes the controller: news of hosts, and of other routers."""

from services.router.models.reports import HostReports
from services.router.presence import RouterPresence
from shared import subjects
from shared.bus import Message
from shared.codec import decode
from shared.messages import RouterAlive
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import ME, Controlled
from tests.kits.router.hosts import hosted, offer, report
from tests.kits.waiting import until

NONE = Message(subjects.HOST_REPORT, b"")


def woken(world: Controlled) -> bool:
    was = world.context.models_changed.is_set()
    world.context.models_changed.clear()
    return was


async def test_a_report_with_other_groups_or_wishes_is_decided_on_at_once(memory_bus: MemoryBus) -> None:
    world = Controlled(memory_bus)
    reports = HostReports(world.context)
    reports.on_report(report(1, offer("m")), NONE)
    assert woken(world)
    reports.on_report(report(2, offer("m")), NONE)
    assert not woken(world)
    reports.on_report(report(3, offer("m"), groups=[hosted("g0", "m", phase="starting")]), NONE)
    assert woken(world)
    reports.on_report(report(4, offer("m"), groups=[hosted("g0", "m", phase="starting", age_ms=9)]), NONE)
    assert not woken(world)
    reports.on_report(report(5, offer("m"), groups=[hosted("g0", "m")]), NONE)
    assert woken(world)
    reports.on_report(report(6, offer("m", wish="unload"), groups=[hosted("g0", "m")]), NONE)
    assert woken(world)
    reports.on_report(report(5, offer("m"), groups=[]), NONE)  # late
    assert not woken(world)
    assert world.event("host_report_ignored") == 1
    assert world.models.offered.offers("m")[0][1].wish == "unload"


async def test_what_another_router_wants_is_decided_on_at_once_and_forgotten_when_it_leaves(
    memory_bus: MemoryBus,
) -> None:
    world = Controlled(memory_bus)
    presence = RouterPresence(world.context)
    presence.on_router(RouterAlive(router_id="other", wanted={"m": 2}), NONE)
    assert woken(world)
    presence.on_router(RouterAlive(router_id="other", wanted={"m": 3}), NONE)
    assert not woken(world)
    presence.on_router(RouterAlive(router_id=ME, wanted={"n": 3}), NONE)  # its own, which comes back
    assert world.models.demand.demand(world.now).keys() == {"m"}
    assert world.models.demand.waiting("m") == 3
    presence.on_router(RouterAlive(router_id="other", takes=False), NONE)
    assert world.models.demand.waiting("m") == 0


async def test_a_router_that_leaves_announces_no_demand(memory_bus: MemoryBus) -> None:
    heard: list[RouterAlive] = []

    async def hear(message: Message) -> None:
        heard.append(decode(message.data, RouterAlive))

    world = Controlled(memory_bus)
    presence = RouterPresence(world.context)
    await memory_bus.subscribe(subjects.ROUTER_ALIVE, hear)
    world.models.demand.note("m", ("t", "r"), world.now)
    await presence.announce_wanted()
    await presence.leave()
    world.models.demand.note("n", ("t", "r"), world.now)
    await presence.announce_wanted()
    await until(lambda: len(heard) == 2)
    assert [(one.takes, one.wanted) for one in heard] == [(True, {"m": 1}), (False, {})]
