"""Bounded entries of several tenants: a flood of one tenant evicts no entry of another."""

import asyncio
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.domain.generation.early_cancels import MAX_TOMBSTONES
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.domain.generation.sized_entries import SizedEntries
from services.worker.domain.generation.tenant_entries import TenantEntries
from services.worker.leader.frame_publisher import FramePublisher
from services.worker.leader.request_table import EndOfRequest, RequestTable
from services.worker.leader.sessions.delivery_tracker import MAX_SESSIONS, DeliveryTracker
from tests.kits.held_objects import num_held
from tests.kits.worker.leader import chat, leader_context


def test_the_oldest_of_who_has_most_goes() -> None:
    entries = TenantEntries[int](4)
    for index, name in enumerate("abcde"):
        entries.put("many", name, index)
    assert (len(entries), entries.get("many", "a"), entries.get("many", "b")) == (4, None, 1)
    entries.put("few", "x", 9)
    entries.put("few", "y", 10)
    assert [entries.get("many", name) for name in "abcde"] == [None, None, None, 3, 4]
    assert (entries.get("few", "x"), entries.get("few", "y"), len(entries)) == (9, 10, 4)


def test_an_entry_that_is_put_again_is_the_newest() -> None:
    entries = TenantEntries[int](2)
    for name in ("a", "b", "a", "c"):
        entries.put("t", name, 1)
    assert (entries.get("t", "a"), entries.get("t", "b"), entries.get("t", "c")) == (1, None, 1)


def test_what_is_over_goes_and_leaves_nothing() -> None:
    entries = TenantEntries[int](10)
    tenants: list[object] = [f"tenant-{letter}" for letter in "st"]
    for index, value in product(range(2), (1, 2, 3)):
        entries.put(str(tenants[index]), str(value), value)
    entries.drop_oldest(lambda value: value <= 2)
    assert (len(entries), entries.get("tenant-s", "3"), entries.get("tenant-t", "2")) == (2, 3, None)
    assert num_held(tenants) == 2
    assert entries.pop("tenant-s", "3") == 3
    assert entries.pop("tenant-s", "3") is None
    entries.drop_oldest(lambda value: True)
    assert (len(entries), num_held(tenants)) == (0, 0)


async def test_a_flood_of_answers_leaves_what_other_tenants_wait_for() -> None:
    deliveries = DeliveryTracker(confirm_s=0.01)

    def expect(tenant: str, name: str) -> None:
        deliveries.expect_delivery(chat(name, tenant=tenant, confirms=True, session={"session_id": name}))

    expect("few", "s")
    for number in range(MAX_SESSIONS + 10):
        expect("many", f"s{number}")
    assert await deliveries.was_lost("few", "s", "s")
    assert not await deliveries.was_lost("many", "s0", "s0")
    assert await deliveries.was_lost("many", f"s{MAX_SESSIONS}", f"s{MAX_SESSIONS}")


@pytest.mark.sources
@pytest.mark.parametrize("attempt", [0, 1])
async def test_a_flood_of_cancels_leaves_those_of_other_tenants(attempt: int) -> None:
    now = [0.0]
    context = leader_context(clock=lambda: now[0])
    publisher = FramePublisher(context, RetransmitBuffer(retention_s=1.0, max_bytes=1000))
    none: Any = None
    engine: Any = SimpleNamespace(step_log=None)
    table = RequestTable(
        context, engine, publisher, EndOfRequest(none, none, none, none, none), tombstone_s=5.0
    )
    for name in ("mine", "late"):
        table.cancel_request(name, "", attempt, tenant="few")
    for number in range(MAX_TOMBSTONES + 10):
        table.cancel_request(f"r{number}", "", attempt, tenant="many")
    assert table.was_cancelled(chat("mine", tenant="few", attempt=attempt))
    assert not table.was_cancelled(chat("mine", tenant="few", attempt=attempt))  # a cancel counts once
    assert not table.was_cancelled(chat("r0", tenant="many", attempt=attempt))
    assert table.was_cancelled(chat(f"r{MAX_TOMBSTONES}", tenant="many", attempt=attempt))
    now[0] = 5.0
    table.forget_expired()
    assert not table.was_cancelled(chat("late", tenant="few", attempt=attempt))
    await asyncio.sleep(0)


def sized(most: int, most_bytes: int, *entries: tuple[str, int]) -> SizedEntries[str]:
    """Bounded entries; `("a1", 5)` is tenant `a`, name `1`, 5 bytes."""
    made = SizedEntries[str](most=most, most_bytes=most_bytes)
    for name, num_bytes in entries:
        made.put((name[0], name[1:]), name, num_bytes)
    return made


def test_what_is_too_much_goes_from_who_has_most_of_it() -> None:
    by_count = sized(3, 1000, ("a1", 1), ("a2", 1), ("a3", 1), ("b1", 900))
    assert by_count.drop_surplus() == [(("a", "1"), "a1")]
    by_bytes = sized(9, 100, ("a1", 10), ("a2", 10), ("b1", 60), ("b2", 60))
    assert by_bytes.drop_surplus() == [(("b", "1"), "b1")]
    assert sized(9, 100, ("a1", 500)).drop_surplus() == []
    changed = sized(9, 100, ("a1", 500), ("b1", 50))
    changed.put(("a", "1"), "a1", 50)
    assert changed.drop_surplus() == []
    assert (changed.pop(("a", "1")), changed.pop(("a", "1")), len(changed)) == ("a1", None, 1)


def test_batches_have_the_oldest_of_each_tenant_in_rotation() -> None:
    entries = sized(99, 9999, ("a1", 90), ("a2", 90), ("b1", 5), ("b2", 5), ("c1", 90))
    assert list(entries.take(9, 100).values()) == ["a1", "b1", "b2"]
    assert list(entries.take(9, 100).values()) == ["c1"]
    assert list(entries.take(9, 10).values()) == ["a2"]
    entries = sized(99, 9999, ("a1", 1), ("a2", 1), ("a3", 1), ("b1", 1))
    assert list(entries.take(3, 100).values()) == ["a1", "b1", "a2"]
    entries.put_first(("a", "1"), "a1", 1)
    assert list(entries.take(9, 100).values()) == ["a1", "a3"]
    assert entries.newest_by_tenant() == []
