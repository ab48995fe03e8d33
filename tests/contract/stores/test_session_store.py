"""Tests of every session store: in memory, on Redis, and behind the guard."""

import asyncio
from contextlib import AsyncExitStack

import redis.asyncio as aioredis

from services.kvstate.domain import keys
from services.kvstate.domain.session_merge import PageCursor, SessionEntry, make_entry
from services.kvstate.domain.session_quota import SessionLives
from services.kvstate.sessions.store import PinOutcome, SessionFate, SessionStore
from shared.codec import decode
from shared.messages import SessionRecord, TurnMark
from tests.kits.kvstate.memory_sessions import MemorySessionStore
from tests.kits.kvstate.session_store import (
    TTL_MS,
    MakeStore,
    entry,
    make_store,
    now_ms,
    open_store,
    put,
    store,
    tenant,
)
from tests.kits.servers import GuardedRedis

__all__ = ["make_store", "store", "tenant"]


async def test_what_was_put_is_found(store: SessionStore, tenant: str) -> None:
    one = entry(tenant, "s:1/ü*", text="hello")
    assert await put(store, [one]) == [True]
    found = await store.get_record(tenant, "s:1/ü*")
    assert found == one.record
    assert decode(found, SessionRecord).messages[0].content == "hello"
    assert await store.get_record(tenant, "other") is None
    assert await store.get_record(tenant + "x", "s:1/ü*") is None
    assert (await store.tally()).sessions >= 1


async def test_a_lower_version_never_replaces_a_higher_one(store: SessionStore, tenant: str) -> None:
    two, one, other_two = entry(tenant, "s", 2, "b"), entry(tenant, "s", 1, "a"), entry(tenant, "s", 2, "c")
    assert await put(store, [two]) == [True]
    assert await put(store, [one]) == [False]
    assert await put(store, [other_two]) == [False]
    assert await put(store, [two]) == [True]  # the same commit again
    assert await store.get_record(tenant, "s") == two.record
    assert await put(store, [entry(tenant, "s", 10, "d")]) == [True]  # versions compare as numbers, not text


async def test_a_batch_is_judged_in_its_order_and_each_entry_alone(store: SessionStore, tenant: str) -> None:
    batch = [
        entry(tenant, "a", 2),
        entry(tenant, "a", 1),
        entry(tenant, "b", 1),
        entry(tenant, "b", 2, "new"),
    ]
    assert await put(store, batch) == [True, False, True, True]
    assert await store.get_record(tenant, "b") == batch[3].record


async def test_a_large_batch_goes_in_one_call(store: SessionStore, tenant: str) -> None:
    base = now_ms()
    batch = [entry(tenant, f"s{i}", updated_ms=base - i) for i in range(150)]
    assert await put(store, batch) == [True] * 150
    page = await store.list_page(tenant, 1000, None)
    assert [s.session_id for s in page.sessions] == [f"s{i}" for i in range(150)]
    assert page.last is None


async def test_racing_commits_leave_the_highest_version(store: SessionStore, tenant: str) -> None:
    entries = [entry(tenant, "s", version, str(version)) for version in range(1, 21)]
    await asyncio.gather(*(store.put_records([e]) for e in entries[::-1] + entries))
    assert await store.get_record(tenant, "s") == entries[-1].record


async def test_pages_are_newest_first_and_meet_without_gap_or_overlap(
    store: SessionStore, tenant: str
) -> None:
    base = now_ms() - 1000
    ages = {"a": 5, "b": 5, "c": 5, "d": 9, "e": 1, "f,:%": 5}
    await store.put_records([entry(tenant, name, updated_ms=base + age) for name, age in ages.items()])
    await store.put_records([entry(tenant + "x", "foreign", updated_ms=base)])
    seen: list[str] = []
    after: PageCursor | None = None
    for _ in range(10):
        page = await store.list_page(tenant, 2, after)
        assert len(page.sessions) <= 2
        seen += [summary.session_id for summary in page.sessions]
        after = page.last
        if after is None:
            break
    assert seen == ["d", "f,:%", "c", "b", "a", "e"]


async def test_summaries_say_what_the_record_holds(store: SessionStore, tenant: str) -> None:
    await store.put_records([entry(tenant, "s", 3, "hello")])
    (summary,) = (await store.list_page(tenant, 10, None)).sessions
    assert (summary.version, summary.turns, summary.num_messages, summary.num_tokens) == (3, 3, 1, 2)
    assert (summary.model, summary.last_group, summary.tenant) == ("m", "g0", tenant)
    assert 3590 <= summary.ttl_s <= 3600


async def test_a_commit_moves_the_session_to_the_front(store: SessionStore, tenant: str) -> None:
    base = now_ms() - 1000
    await store.put_records(
        [entry(tenant, "a", 1, updated_ms=base), entry(tenant, "b", 1, updated_ms=base + 1)]
    )
    await store.put_records([entry(tenant, "a", 2, updated_ms=base + 2)])
    assert [s.session_id for s in (await store.list_page(tenant, 10, None)).sessions] == ["a", "b"]


async def test_a_deleted_session_is_gone_and_can_come_back(store: SessionStore, tenant: str) -> None:
    await store.put_records([entry(tenant, "s", 5)])
    assert await store.deleted_ms(tenant, "s") is None
    before = now_ms()
    assert await store.delete_session(tenant, "s")
    assert not await store.delete_session(tenant, "s")
    deleted = await store.deleted_ms(tenant, "s")
    assert deleted is not None
    assert before <= deleted <= now_ms()
    assert await store.get_record(tenant, "s") is None
    assert (await store.list_page(tenant, 10, None)).sessions == []
    late = entry(tenant, "s", 6, created_ms=now_ms() - 1000)  # of a turn that began before the deletion
    assert await put(store, [late, entry(tenant, "s", 6)]) == [False, False]
    assert await store.get_record(tenant, "s") is None
    later = now_ms() + 1000
    again = [entry(tenant, "s", 1, created_ms=later), entry(tenant, "s", 2, created_ms=later)]
    assert await put(store, again) == [True, True]
    assert await store.deleted_ms(tenant, "s") is None


async def test_a_pin_stands_beside_the_record_and_goes_with_it(store: SessionStore, tenant: str) -> None:
    assert await store.pin_session(tenant, "s", "g1") is PinOutcome.NO_SESSION
    assert await store.describe_session(tenant, "s") is None
    await store.put_records([entry(tenant, "s", 1)])
    assert await store.pin_session(tenant, "s", "g1") is PinOutcome.DONE
    assert await store.pin_session(tenant + "x", "s", "g1") is PinOutcome.NO_SESSION
    await store.put_records([entry(tenant, "s", 2)])
    summary = await store.describe_session(tenant, "s")
    assert summary is not None
    assert (summary.version, summary.pinned_group) == (2, "g1")
    assert 3590 <= summary.ttl_s <= 3600
    (listed,) = (await store.list_page(tenant, 10, None)).sessions
    assert (listed.session_id, listed.pinned_group) == ("s", "g1")
    assert await store.describe_session(tenant + "x", "s") is None
    assert await store.delete_session(tenant, "s")
    await store.put_records([entry(tenant, "s", 1, created_ms=now_ms() + 1000)])
    summary = await store.describe_session(tenant, "s")
    assert summary is not None
    assert summary.pinned_group == ""


async def all_pins(store: SessionStore, limit: int = 1000) -> set[tuple[str, str, str]]:
    found, after = set(), ""
    while True:
        page = await store.list_pins(limit, after)
        assert len(page.pins) <= limit
        found |= {(pin.tenant, pin.session_id, pin.group) for pin in page.pins}
        if not (after := page.last):
            return found


async def test_all_pins_are_found_page_by_page(store: SessionStore, tenant: str) -> None:
    names = [f"s:{number}/ü" for number in range(5)]
    other = tenant + "x"
    await store.put_records([entry(owner, name) for owner in (tenant, other) for name in names])
    for name in names:
        await store.pin_session(tenant, name, "g1")
    await store.pin_session(other, names[0], "g2")
    await store.pin_session(tenant, names[1], "g3")
    await store.pin_session(tenant, names[2], "")
    await store.delete_session(tenant, names[3])
    expected = {
        (tenant, names[0], "g1"),
        (tenant, names[1], "g3"),
        (tenant, names[4], "g1"),
        (other, names[0], "g2"),
    }
    for limit in (1, 2, 1000):
        assert {pin for pin in await all_pins(store, limit) if pin[0] in (tenant, other)} == expected


async def test_a_pin_expires_with_its_record(make_store: MakeStore, tenant: str) -> None:
    short = make_store(lives=SessionLives(0.1))
    await short.put_records([entry(tenant, "s")])
    await short.pin_session(tenant, "s", "g1")
    await asyncio.sleep(0.15)
    assert not {pin for pin in await all_pins(short) if pin[0] == tenant}
    await short.put_records([entry(tenant, "s")])
    assert not {pin for pin in await all_pins(short) if pin[0] == tenant}


async def test_records_expire_and_leave_the_list(make_store: MakeStore, tenant: str) -> None:
    short, long = make_store(lives=SessionLives(1.0)), make_store()
    await short.put_records([entry(tenant, "s"), entry(tenant, "t")])
    await asyncio.sleep(0.5)
    await short.put_records([entry(tenant, "t", 2)])  # a commit extends the expiry
    await asyncio.sleep(0.6)
    assert await short.get_record(tenant, "s") is None
    assert [s.session_id for s in (await short.list_page(tenant, 10, None)).sessions] == ["t"]
    await asyncio.sleep(0.6)
    assert (await short.list_page(tenant, 10, None)).sessions == []
    assert await put(short, [entry(tenant, "s", 1)]) == [True]  # no version is left to compare with
    await long.put_records([])


async def test_expired_entries_do_not_shorten_a_page(make_store: MakeStore, tenant: str) -> None:
    short, long = make_store(lives=SessionLives(0.05)), make_store()
    base = now_ms()
    await short.put_records([entry(tenant, f"old{i}", updated_ms=base - i) for i in range(5)])
    await asyncio.sleep(0.08)
    if isinstance(long, MemorySessionStore):
        short = long  # two memory stores share nothing, so no record of this one has expired
    await long.put_records([entry(tenant, f"new{i}", updated_ms=base - 100 - i) for i in range(3)])
    page = await long.list_page(tenant, 2, None)
    assert [s.session_id for s in page.sessions] == ["new0", "new1"]
    assert page.last is not None
    assert [s.session_id for s in (await long.list_page(tenant, 2, page.last)).sessions] == ["new2"]


async def test_sessions_that_vanished_do_not_hide_later_ones(
    guarded_redis: GuardedRedis, tenant: str
) -> None:
    store, newest = open_store(guarded_redis.url("kvstate"), max_connections=2), now_ms()
    client = aioredis.Redis.from_url(guarded_redis.url("admin"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        stack.push_async_callback(client.aclose)
        names = [f"s{number:02}" for number in range(20)]
        await store.put_records(
            [entry(tenant, name, updated_ms=newest - at) for at, name in enumerate(names)]
        )
        await client.delete(*(keys.session(tenant, name) for name in names[:3]))
        page = await store.list_page(tenant, 4, None)
        seen = [summary.session_id for summary in page.sessions]
        while page.last:
            page = await store.list_page(tenant, 4, page.last)
            seen += [summary.session_id for summary in page.sessions]
    assert seen == names[3:]


async def test_what_became_of_sessions(make_store: MakeStore, tenant: str) -> None:
    store = make_store()
    await store.put_records([entry(tenant, "kept"), entry(tenant, "deleted")])
    await store.delete_session(tenant, "deleted")
    keys = [(tenant, name) for name in ("kept", "deleted", "never")]
    assert await store.fates(keys) == [
        SessionFate(True, False),
        SessionFate(False, True),
        SessionFate(False, False),
    ]
    assert await store.fates([]) == []


async def test_a_later_record_that_was_made_without_the_stored_turn_is_stale(
    store: SessionStore, tenant: str
) -> None:
    def turn(version: int, *requests: str, replaces: str = "") -> SessionEntry:
        marks = [TurnMark(request_id=name, version=version, size=2, replaces=replaces) for name in requests]
        made = SessionRecord(
            session_id="s", tenant=tenant, model="m", version=version, last_request=requests[-1], recent=marks
        )
        return make_entry(made, now_ms(), TTL_MS)

    assert await put(store, [turn(1, "a")]) == [True]
    assert await put(store, [turn(2, "b"), turn(3, "b", "c")]) == [False, False]
    assert await put(store, [turn(2, "a", "b"), turn(4, "a", "b", "c", "d")]) == [True, True]
    assert await put(store, [turn(5, "e", replaces="d")]) == [True]
    assert await put(store, [entry(tenant, "s", 6)]) == [True]  # a record without turn marks: an import
    assert await put(store, [turn(7, "x")]) == [True]  # the turn after it
