"""Places for many tenants: shares, turns, bounds, and what a cancelled wait leaves behind."""

import asyncio
import gc
import random

import pytest

from shared.flow.tenant_slots import TenantSlots, TooManyWait
from tests.kits.held_objects import num_held


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_tenant_never_has_all_slots() -> None:
    slots = TenantSlots(3, per_tenant=2)
    assert [slots.take("a") for _ in range(3)] == [True, True, False]
    assert slots.take("b")
    assert not slots.take("c")


async def test_those_that_wait_are_served_by_tenant() -> None:
    slots, order = TenantSlots(1, per_tenant=1), list[str]()

    async def work(tenant: str, name: str) -> None:
        await slots.enter(tenant)
        order.append(name)
        await asyncio.sleep(0)
        slots.leave(tenant)

    many = [work("many", f"many{number}") for number in range(4)]
    await asyncio.gather(*many, work("few", "few0"), work("one", "one0"), work("few", "few1"))
    assert order == ["many0", "many1", "few0", "one0", "many2", "few1", "many3"]


async def test_beyond_its_bound_a_tenant_is_refused_and_no_other() -> None:
    slots = TenantSlots(1, per_tenant=1, max_waiting=2)
    await slots.enter("a")
    waiting = [asyncio.create_task(slots.enter("a")) for _ in range(2)]
    await settle()
    with pytest.raises(TooManyWait):
        await slots.enter("a")
    other = asyncio.create_task(slots.enter("b"))
    await settle()
    slots.leave("a")
    await waiting[0]
    slots.leave("a")
    await other
    slots.leave("b")
    await waiting[1]


async def test_a_tenant_that_may_have_none_waiting_leaves_no_trace_when_refused() -> None:
    slots = TenantSlots(2, per_tenant=1, max_waiting=0)
    tenants: list[object] = ["-".join("ab")]
    assert slots.take("a-b")
    with pytest.raises(TooManyWait):
        await slots.enter(str(tenants[0]))
    gc.collect()  # the error's traceback
    assert num_held(tenants) == 0


async def test_cancelled_waits_and_places_given_to_the_cancelled_are_not_lost() -> None:
    chance = random.Random(7)
    slots, inside, most = TenantSlots(3, per_tenant=2), dict[str, int](), dict[str, int]()

    async def work(tenant: str) -> None:
        await slots.enter(tenant)
        try:
            inside[tenant] = inside.get(tenant, 0) + 1
            most[tenant] = max(most.get(tenant, 0), inside[tenant])
            assert sum(inside.values()) <= 3
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            inside[tenant] -= 1
            slots.leave(tenant)

    tasks = [asyncio.create_task(work(chance.choice("abcd"))) for _ in range(300)]
    while not all(task.done() for task in tasks):
        chance.choice(tasks).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not [task for task in tasks if not task.cancelled() and task.exception()]
    assert max(most.values()) == 2
    assert [slots.take(tenant) for tenant in "aaabc"] == [True, True, False, True, False]
