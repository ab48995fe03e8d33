"""Tests of every store of responses: in memory and on Redis, with the rights of the service's user."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from services.kvstate.domain import keys
from services.kvstate.domain.session_quota import DAY_MS
from services.kvstate.redis.link import RedisLink
from services.kvstate.responses.redis_responses import RedisResponseStore
from services.kvstate.responses.store import (
    FoundResponse,
    PutResult,
    ResponseEntry,
    ResponseQuotas,
    ResponseStore,
)
from tests.kits.kvstate.memory_responses import MemoryResponseStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S

Make = Callable[..., ResponseStore]
STORED = PutResult(stored=True)
DAY_S = 86_400


@pytest.fixture(params=["memory", "redis"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[ResponseStore] = []

    def make_store(*, ttl_s: float = 3600.0, quotas: ResponseQuotas | None = None) -> ResponseStore:
        quotas = quotas or ResponseQuotas()
        store: ResponseStore
        if request.param == "memory":
            store = MemoryResponseStore(ttl_s=ttl_s, clock=time.monotonic, quotas=quotas)
        else:
            server: GuardedRedis = request.getfixturevalue("guarded_redis")
            link = RedisLink(
                server.url("kvstate"),
                timeout_s=PATIENCE_S,
                max_connections=4,
                name="store",
                reason="session_store",
            )
            store = RedisResponseStore(link, ttl_s=ttl_s, quotas=quotas)
        made.append(store)
        return store

    yield make_store
    for store in made:
        await store.close()


@pytest.fixture
def tenant() -> str:
    return f"t{uuid4().hex[:12]}"


async def test_a_record_is_found_by_its_tenant_alone_until_it_is_deleted(make: Make, tenant: str) -> None:
    store = make()
    assert await store.put(ResponseEntry(tenant, "resp_1", b"one")) == STORED
    assert await store.get(tenant, "resp_1") == FoundResponse(b"one", abandoned=False)
    assert await store.get(tenant + "x", "resp_1") is None
    assert not await store.delete(tenant + "x", "resp_1")
    assert await store.delete(tenant, "resp_1")
    assert not await store.delete(tenant, "resp_1")
    assert await store.get(tenant, "resp_1") is None


async def test_an_ended_record_stays_as_it_is(make: Make, tenant: str) -> None:
    store = make()
    running = ResponseEntry(tenant, "r", b"running", ended=False, owner="a", lease_ms=60_000)
    assert await store.put(running) == STORED
    assert await store.put(ResponseEntry(tenant, "r", b"ended", is_new=False)) == STORED
    assert await store.put(ResponseEntry(tenant, "r", b"ended", is_new=False)) == STORED  # sent twice
    assert not (await store.put(ResponseEntry(tenant, "r", b"cancelled", is_new=False))).stored
    assert not (await store.put(running)).stored
    assert await store.get(tenant, "r") == FoundResponse(b"ended", abandoned=False)
    assert await store.delete(tenant, "r")
    assert not (await store.put(ResponseEntry(tenant, "r", b"late", is_new=False))).stored


async def test_a_chain_is_read_in_pieces_and_says_what_is_missing(make: Make, tenant: str) -> None:
    store = make()
    for number in range(5):
        parent = f"r{number - 1}" if number else ""
        await store.put(ResponseEntry(tenant, f"r{number}", b"%d" % number * 10, parent))
    assert await store.chain(tenant, "r4", 1000, 9) == ([b"%d" % n * 10 for n in (4, 3, 2, 1, 0)], "", "")
    assert await store.chain(tenant, "r4", 25, 9) == ([b"4" * 10, b"3" * 10], "r2", "")
    assert await store.chain(tenant, "r4", 1000, 1) == ([b"4" * 10], "r3", "")
    assert await store.chain(tenant, "r2", 0, 9) == ([b"2" * 10], "r1", "")
    await store.delete(tenant, "r1")
    assert (await store.chain(tenant, "r3", 1000, 9)).missing == "r1"
    assert (await store.chain(tenant + "x", "r3", 1000, 9)).missing == "r3"


async def test_one_owner_at_a_time_and_another_when_its_lease_is_over(make: Make, tenant: str) -> None:
    store = make()
    await store.put(ResponseEntry(tenant, "r", b"running", ended=False, owner="a", lease_ms=60_000))
    assert await store.lease(tenant, "r", "a", 60_000, takes_over=False)
    assert not await store.lease(tenant, "r", "b", 60_000, takes_over=False)
    assert await store.lease(tenant, "r", "b", 60_000, takes_over=True)
    assert not await store.lease(tenant, "r", "a", 60_000, takes_over=False)
    assert await store.get(tenant, "r") == FoundResponse(b"running", abandoned=False)
    assert (tenant, "r") not in await store.claim("c", 60_000, 16)
    assert await store.lease(tenant, "r", "b", 0, takes_over=False)  # given back
    assert await store.get(tenant, "r") == FoundResponse(b"running", abandoned=True)
    assert (tenant, "r") in await store.claim("c", 60_000, 16)
    assert (tenant, "r") not in await store.claim("d", 60_000, 16)
    await store.put(ResponseEntry(tenant, "r", b"ended", is_new=False))
    assert not await store.lease(tenant, "r", "c", 60_000, takes_over=True)
    assert not await store.lease(tenant, "none", "c", 60_000, takes_over=True)


async def test_at_its_quota_a_tenant_loses_what_was_unused_longest(make: Make, tenant: str) -> None:
    store = make(quotas=ResponseQuotas(response_max_per_tenant=3))
    await store.put(ResponseEntry(tenant, "running", b"x", ended=False, owner="a", lease_ms=60_000))
    for name in ("old", "used"):
        await store.put(ResponseEntry(tenant, name, b"x"))
        await asyncio.sleep(0.003)  # they are ordered by milliseconds
    await store.put(ResponseEntry(tenant + "x", "other", b"x"))
    await store.chain(tenant, "old", 1000, 9)  # now `used` is the longest unused
    assert await store.put(ResponseEntry(tenant, "new", b"x")) == PutResult(stored=True, dropped=1)
    assert await store.get(tenant, "used") is None
    for name in ("running", "old", "new"):
        assert await store.get(tenant, name) is not None
    assert await store.get(tenant + "x", "other") is not None


async def test_bytes_are_counted_and_freed(make: Make, tenant: str) -> None:
    store = make(quotas=ResponseQuotas(response_bytes_per_tenant=10_000))
    assert (await store.put(ResponseEntry(tenant, "huge", b"x" * 20_000))).over_quota
    for number in range(8):
        assert (await store.put(ResponseEntry(tenant, f"r{number}", b"x" * 4000))).stored
        await asyncio.sleep(0.002)
    there = [number for number in range(8) if await store.get(tenant, f"r{number}") is not None]
    assert there == [6, 7]
    await store.delete(tenant, "r6")
    await store.delete(tenant, "r7")
    assert await store.put(ResponseEntry(tenant, "r", b"x" * 9000)) == STORED


async def test_what_is_continued_lives_on(make: Make, tenant: str) -> None:
    store = make(ttl_s=0.4)
    await store.put(ResponseEntry(tenant, "parent", b"x"))
    await store.put(ResponseEntry(tenant, "other", b"x"))
    for _ in range(3):
        await asyncio.sleep(0.2)
        assert not (await store.chain(tenant, "parent", 1000, 9)).missing
    assert await store.get(tenant, "other") is None
    await asyncio.sleep(0.6)
    assert await store.get(tenant, "parent") is None


async def test_the_ids_of_a_tenant(make: Make, tenant: str) -> None:
    store = make()
    assert await store.ids_of(tenant, 10) == []
    for number in range(5):
        await store.put(ResponseEntry(tenant, f"r{number}", b"x", ended=number != 3))
    await store.put(ResponseEntry(tenant + "x", "other", b"x"))
    assert sorted(await store.ids_of(tenant, 10)) == [f"r{number}" for number in range(5)]
    assert len(await store.ids_of(tenant, 2)) == 2
    for response_id in await store.ids_of(tenant, 10):
        assert await store.delete(tenant, response_id)
    assert await store.ids_of(tenant, 10) == []
    assert await store.ids_of(tenant + "x", 10) == ["other"]


async def test_responses_live_as_long_as_their_tenant_says(guarded_redis: GuardedRedis, tenant: str) -> None:
    """Also those that are there when the tenant gets a shorter time; others keep theirs."""
    own: dict[str, int] = {tenant: 30}
    link = RedisLink(
        guarded_redis.url("kvstate"),
        timeout_s=PATIENCE_S,
        max_connections=4,
        name="store",
        reason="session_store",
    )
    store = RedisResponseStore(link, ttl_s=60 * DAY_S, days_of=lambda name: own.get(name, 0))
    names, other = [f"r{number:03}" for number in range(600)], tenant + "x"  # more than two pages
    running = ResponseEntry(tenant, "running", b"r", ended=False, owner="a", lease_ms=60_000)
    for entry in (*(ResponseEntry(tenant, name, b"r") for name in names), running):
        assert await store.put(entry) == STORED
    assert await store.put(ResponseEntry(other, "r000", b"r")) == STORED

    async def left_days(name: str, whose: str) -> float:
        (left,) = await link.pipeline([("PTTL", f"{keys.RESPONSE_PREFIX}{whose}:{name}")])
        return round(int(left) / 1000 / DAY_S, 3)

    assert (await left_days("r000", tenant), await left_days("r000", other)) == (30, 60)
    now_ms = time.time_ns() // 1_000_000
    aged = {name: index % 10 for index, name in enumerate(names)}  # days
    for name, days in {**aged, "running": 9}.items():
        at_ms = now_ms - days * DAY_MS
        await link.pipeline([("HSET", f"{keys.RESPONSE_PREFIX}{tenant}:{name}", "t", at_ms)])
    assert await store.shorten(tenant, 7) == 180, "those of 7, 8 and 9 days"
    for name, days in aged.items():
        found = await store.get(tenant, name)
        assert (found is None) == (days >= 7), (name, days)
        if found is not None:
            assert await left_days(name, tenant) == 7 - days
    assert await store.get(tenant, "running") is not None, "it has not ended"
    assert await left_days("r000", other) == 60
    assert await store.shorten(tenant, 7) == 0
    (size,) = await link.pipeline([("HLEN", f"{keys.RESPONSE_SIZES_PREFIX}{tenant}")])
    assert size == 420 + 2, "what went has left the account"
    own[tenant] = 7
    assert len((await store.chain(tenant, "r006", 1000, 1)).records) == 1
    assert await left_days("r006", tenant) == 7, "a response that is continued lives as long as a new one"
    await store.close()
