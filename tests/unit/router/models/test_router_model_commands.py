"""What is sent to hosts: only under the lease, one command after another, and none before it shows."""

import asyncio

from services.router.domain.models.control_state import Load, Refused, Resize, Stop
from shared import subjects
from shared.bus import Message
from shared.codec import decode
from shared.messages import GroupCommanded, KVLimited, LimitKV, RouterAlive, StartGroup, StopGroup
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import Controlled
from tests.kits.router.hosts import hosted, offer, report
from tests.kits.waiting import until


async def holding(bus: MemoryBus, **constants: float) -> Controlled:
    """A controller that holds the lease."""
    world = await Controlled(bus, **constants).start()
    world.report(offer("m"))
    task = asyncio.create_task(world.lease.keep())
    await until(lambda: world.lease.is_held(world.now))
    task.cancel()
    return world


async def test_without_the_lease_nothing_is_sent(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.decided = [Load("h", "m", "demand"), Refused("large", "It is too large.")]
    world.now += 3.0
    world.controller.tick(world.now)
    await asyncio.sleep(0.05)
    assert world.commands == []
    assert world.models.too_large == {"large": "It is too large."}  # every router refuses it


async def test_a_command_names_what_was_seen_and_the_epoch(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.report(offer("m"), groups=[hosted("g9", "m"), hosted("g8", "other")])
    world.decided = [Load("h", "m", "queue")]
    world.controller.tick(world.now)
    await until(lambda: world.commands != [])
    assert world.commands == [StartGroup(model="m", running=1, epoch=7, reason="queue")]
    await until(lambda: world.count("load", "queue", "done") == 1)
    await world.controller.leave()


async def test_the_next_command_comes_when_a_report_shows_the_one_before(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.report(offer("m"), offer("n"), groups=[hosted("g0", "m"), hosted("g1", "m")])
    world.decided = [Stop("h", "g0", "evicted", "n"), Stop("h", "g1", "evicted", "n")]
    world.controller.tick(world.now)
    await until(lambda: len(world.commands) == 1)
    world.decided = [Load("h", "n", "demand")]
    world.controller.tick(world.now)  # the host is not free
    await asyncio.sleep(0.1)
    assert world.commands == [StopGroup(group="g0", epoch=7, reason="evicted")]
    (host,) = world.seen[-1].hosts
    assert [group.stopping for group in host.groups] == [True, False]  # it counts as carried out
    world.answer = GroupCommanded(group="g1")
    world.report(offer("m"), offer("n"), groups=[hosted("g0", "m", phase="stopping"), hosted("g1", "m")])
    await until(lambda: len(world.commands) == 2)
    assert world.commands[-1] == StopGroup(group="g1", epoch=7, reason="evicted")
    await world.controller.leave()


async def test_a_limit_shows_when_its_effect_was_measured(memory_bus: MemoryBus) -> None:
    def with_kv(kv_bytes: int, charged_bytes: int) -> None:
        group = hosted("g0", "m", kv_bytes=kv_bytes, kv_most_bytes=100, charged_bytes=charged_bytes)
        world.report(offer("m"), offer("n"), groups=[group])

    world = await holding(memory_bus)
    with_kv(100, 300)
    world.limited = KVLimited(group="g0", limit_bytes=42)
    world.decided = [Resize("h", "g0", 40, "wanted", "n"), Load("h", "n", "demand")]
    world.controller.tick(world.now)
    await until(lambda: len(world.commands) == 1)
    assert world.commands == [LimitKV(group="g0", limit_bytes=40, epoch=7, reason="wanted")]
    world.controller.tick(world.now)
    await asyncio.sleep(0.1)
    assert len(world.commands) == 1
    (host,) = world.seen[-1].hosts
    assert [(group.charged_bytes, group.kv.freeing_bytes) for group in host.groups] == [(300, 60)]
    with_kv(42, 242)
    await until(lambda: len(world.commands) == 2)
    assert world.commands[-1] == StartGroup(model="n", running=0, epoch=7, reason="demand")
    assert world.count("resize", "wanted", "done") == 1
    await world.controller.leave()


async def test_after_a_refusal_the_rest_is_decided_anew(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.answer = GroupCommanded(refused="epoch 7 is over")
    world.decided = [Stop("h", "g0", "idle"), Stop("h", "g1", "idle")]
    world.controller.tick(world.now)
    await until(lambda: world.count("stop", "idle", "refused") == 1)
    await asyncio.sleep(0.05)
    assert len(world.commands) == 1
    world.controller.tick(world.now)
    (host,) = world.seen[-1].hosts
    assert not any(group.stopping for group in host.groups)
    await world.controller.leave()


async def test_a_host_that_does_not_answer_is_left_alone_for_a_while(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.models.offered.expire(200.0)
    world.now = 100.0
    world.models.observe(report(1, offer("m"), host="deaf"), world.now)
    world.decided = [Load("deaf", "m", "demand")]
    world.controller.tick(world.now)
    await until(lambda: world.count("load", "demand", "unanswered") == 1)
    world.controller.tick(world.now)
    await asyncio.sleep(0.05)
    assert world.count("load", "demand", "unanswered") == 1
    await world.controller.leave()


async def test_a_decision_that_fails_ends_no_router(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus, models_tick_s=0.01, models_pause_s=0.001)
    world.decided = None  # type: ignore[assignment]
    control = asyncio.create_task(world.controller.control())
    await until(lambda: world.event("control_failed") > 1)
    world.decided = [Load("h", "m", "demand")]
    await until(lambda: world.commands != [])
    control.cancel()
    await world.controller.leave()


async def test_a_wanted_model_is_announced_and_decided_on_at_once(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus, models_tick_s=60.0)
    heard: list[RouterAlive] = []

    async def hear(message: Message) -> None:
        heard.append(decode(message.data, RouterAlive))

    await memory_bus.subscribe(subjects.ROUTER_ALIVE, hear)
    control = asyncio.create_task(world.controller.control())
    await asyncio.sleep(0.05)
    assert world.seen == []
    world.models.demand.note("m", ("t", "r"), world.now)
    world.context.models_changed.set()
    await until(lambda: world.seen != [] and heard != [])
    assert heard[0].wanted == {"m": 1}
    assert world.seen[-1].demand["m"].requests == 1
    world.context.models_changed.set()  # by another router's news: nothing is new here
    await until(lambda: len(world.seen) == 2)
    assert len(heard) == 1
    control.cancel()


async def test_models_of_a_silent_host_are_no_longer_refused_as_too_large(memory_bus: MemoryBus) -> None:
    world = await holding(memory_bus)
    world.decided = [Refused("m", "It is too large.")]
    world.controller.tick(world.now)
    assert world.models.too_large
    world.now += 10.0
    world.controller.tick(world.now)
    assert world.models.too_large == {}
    assert not world.models.offered
