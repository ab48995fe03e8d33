"""For how long a router believes that it may command, and when it asks at all."""

import asyncio
from contextlib import suppress

from shared.messages import LeaseHeld
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import ME, Controlled
from tests.kits.router.hosts import offer, report
from tests.kits.waiting import until


async def kept(world: Controlled) -> asyncio.Task[None]:
    return asyncio.create_task(world.lease.keep())


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_without_hosts_no_call_is_made(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus).start()
    task = await kept(world)
    await asyncio.sleep(0.6)
    assert world.claims == []
    world.report(offer("m"))
    await until(lambda: world.claims != [])
    await end(task)


async def test_a_lease_counts_from_before_it_was_asked_for(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus).start()
    world.report(offer("m"))
    world.claim_takes_s = 2.0
    task = await kept(world)
    await until(lambda: world.lease.holder == ME)
    assert (world.now, world.lease.epoch) == (102.0, 7)
    assert world.lease.is_held(102.9)
    assert not world.lease.is_held(103.0)
    await end(task)


async def test_a_store_that_is_away_takes_the_lease_only_when_it_runs_out(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus, lease_claim_s=0.02).start()
    world.report(offer("m"))
    task = await kept(world)
    await until(lambda: world.lease.is_held(world.now))
    world.held = None
    asked = len(world.claims)
    await until(lambda: len(world.claims) > asked + 1)
    assert world.lease.is_held(102.9)
    assert not world.lease.is_held(103.1)
    await end(task)


async def test_a_lease_that_another_router_has_is_not_believed_in(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus, lease_claim_s=0.02).start()
    world.report(offer("m"))
    task = await kept(world)
    await until(lambda: world.lease.is_held(world.now))
    world.held = LeaseHeld(holder="router-2", epoch=8, ttl_ms=3000)
    await until(lambda: world.lease.holder == "router-2")
    assert not world.lease.is_held(world.now)
    await end(task)


async def test_a_lease_is_given_back_once_and_not_taken_again(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus, lease_claim_s=0.02).start()
    world.report(offer("m"))
    task = await kept(world)
    await until(lambda: world.lease.is_held(world.now))
    await world.controller.leave()
    assert not world.lease.is_held(world.now)
    await task
    assert [claim.ttl_ms for claim in world.claims if claim.ttl_ms == 0] == [0]
    assert world.claims[-1].ttl_ms == 0


async def test_a_claim_names_the_highest_epoch_of_the_hosts(memory_bus: MemoryBus) -> None:
    world = await Controlled(memory_bus).start()
    for host, epoch in (("one", 5), ("two", 9)):
        world.models.observe(report(1, offer("m"), host=host, epoch=epoch), world.now)
    task = await kept(world)
    await until(lambda: world.claims != [])
    assert world.claims[0].heard_epoch == 9
    await end(task)
