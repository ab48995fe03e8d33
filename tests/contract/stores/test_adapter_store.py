"""Tests of every store of the register of adapters: in memory and on Redis, with the service's user."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from services.kvstate.adapters.redis_adapters import RedisAdapterStore
from services.kvstate.adapters.store import AdapterStore, RegisterEntry, RegisterLimits
from services.kvstate.domain import keys
from services.kvstate.redis.link import RedisLink
from tests.kits.kvstate.memory_adapters import MemoryAdapterStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S

LIMITS = RegisterLimits(per_base=4, total=6)
ROOM = 1 << 20


def redis_link(server: GuardedRedis) -> RedisLink:
    return RedisLink(
        server.url("kvstate"), timeout_s=PATIENCE_S, max_connections=4, name="store", reason="session_store"
    )


async def emptied(link: RedisLink) -> None:
    store = RedisAdapterStore(link)
    for record in (await store.page("", ROOM)).records:
        base, name, _ = record.decode().split("|", 2)
        await store.delete(base, name)


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[AdapterStore]:
    made: AdapterStore
    if request.param == "memory":
        made = MemoryAdapterStore(time.time, LIMITS)
        yield made
    else:
        link = redis_link(request.getfixturevalue("guarded_redis"))
        await emptied(link)
        made = RedisAdapterStore(link, LIMITS)
        yield made
        await emptied(link)
    await made.close()


def entry(base: str, name: str, content: str = "a", tenant: str = "t") -> RegisterEntry:
    record = f"{base}|{name}|{content}|{tenant}|{uuid4().hex}".encode()
    return RegisterEntry(base, name, content, f"{content} {tenant}", record)


async def records(store: AdapterStore, room: int = ROOM) -> list[bytes]:
    page = await store.page("", room)
    found = list(page.records)
    while page.cursor:
        page = await store.page(page.cursor, room)
        found += page.records
    return found


async def test_what_is_put_is_listed_and_each_change_has_a_higher_version(store: AdapterStore) -> None:
    before = (await store.page("", ROOM)).version
    one, two = entry("m", "b"), entry("m", "a")
    first = await store.put(one, replace=False)
    assert (first.verdict, first.record, first.before) == ("put", one.record, before)
    second = await store.put(two, replace=False)
    assert before < first.version < second.version
    assert second.before == first.version
    assert await records(store) == [two.record, one.record]
    gone = await store.delete("m", "b")
    assert (gone.verdict, gone.record, gone.before) == ("put", one.record, second.version)
    assert gone.version > second.version
    assert await records(store) == [two.record]
    assert (await store.page("", ROOM)).version == gone.version


async def test_the_same_again_changes_nothing(store: AdapterStore) -> None:
    one = entry("m", "a")
    first = await store.put(one, replace=False)
    again = await store.put(entry("m", "a"), replace=False)
    assert (again.verdict, again.record) == ("same", one.record)
    assert again.before == again.version == first.version
    gone = await store.delete("m", "other")
    assert (gone.verdict, gone.record, gone.version) == ("same", None, first.version)


async def test_other_content_is_a_conflict_unless_it_replaces(store: AdapterStore) -> None:
    one, other = entry("m", "a"), entry("m", "a", "b")
    first = await store.put(one, replace=False)
    refused = await store.put(other, replace=False)
    assert (refused.verdict, refused.record, refused.version) == ("conflict", one.record, first.version)
    replaced = await store.put(other, replace=True)
    assert (replaced.verdict, replaced.record) == ("put", other.record)
    assert await records(store) == [other.record]


async def test_the_same_content_of_another_source_is_put(store: AdapterStore) -> None:
    await store.put(entry("m", "a"), replace=False)
    moved = entry("m", "a", tenant="elsewhere")
    assert (await store.put(moved, replace=False)).verdict == "put"
    assert await records(store) == [moved.record]


async def test_a_base_has_so_many_and_all_together_so_many(store: AdapterStore) -> None:
    for number in range(4):
        await store.put(entry("m", f"n{number}"), replace=False)
    assert (await store.put(entry("m", "n4"), replace=False)).verdict == "base_full"
    assert (await store.put(entry("m", "n3", "b"), replace=True)).verdict == "put"
    # of bases whose names begin alike each has its own count
    for base in ("m-x", "m:x"):
        assert (await store.put(entry(base, "n"), replace=False)).verdict == "put"
    assert (await store.put(entry("z", "n"), replace=False)).verdict == "full"
    await store.delete("m", "n0")
    assert (await store.put(entry("z", "n"), replace=False)).verdict == "put"


async def test_pages_have_room_and_no_more_and_go_on_where_the_last_one_ended(store: AdapterStore) -> None:
    put = [entry(base, name) for base, name in (("a", "1"), ("a", "2"), ("b", "1"), ("ü", "1"))]
    for one in put:
        await store.put(one, replace=False)
    size = len(put[0].record)
    for room in (1, size, 2 * size + 1, ROOM):
        assert await records(store, room) == [one.record for one in put]
    page = await store.page("", 2 * size + 1)
    assert (len(page.records), page.cursor) == (2, "a 2")
    assert (await store.page("", ROOM)).cursor == ""


async def test_a_known_version_brings_nothing(store: AdapterStore) -> None:
    change = await store.put(entry("m", "a"), replace=False)
    page = await store.page("", ROOM, change.version)
    assert (page.records, page.version, page.cursor) == ([], change.version, "")
    assert len((await store.page("", ROOM, change.version - 1)).records) == 1


async def test_of_puts_at_the_same_time_one_content_stays(store: AdapterStore) -> None:
    entries = [entry("m", "a", f"c{number}") for number in range(8)]
    changes = await asyncio.gather(*(store.put(one, replace=False) for one in entries))
    assert sorted(change.verdict for change in changes) == ["conflict"] * 7 + ["put"]
    assert len({change.record for change in changes}) == 1


async def test_the_version_grows_over_a_loss_of_the_store(guarded_redis: GuardedRedis) -> None:
    link = redis_link(guarded_redis)
    store = RedisAdapterStore(link)
    version = 0
    for number in range(8):  # several changes: the version is then not the time of the first one
        version = (await store.put(entry("m", "a", f"c{number}"), replace=True)).version
    await asyncio.sleep(0.02)
    await emptied(link)
    await link.pipeline([("DEL", keys.ADAPTERS_VERSION)])
    assert (await store.put(entry("m", "a"), replace=False)).version > version
    await emptied(link)
    await store.close()
