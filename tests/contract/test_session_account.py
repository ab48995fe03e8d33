"""The account of tenants' sessions in Redis: exact, bounded, and as large as what Redis takes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio as aioredis

from services.kvstate.domain import keys
from services.kvstate.domain.session_merge import Verdict
from services.kvstate.domain.session_quota import ID_COPIES, OVERHEAD, SessionLives, SessionQuotas, size_of
from services.kvstate.redis.store_errors import StoreFull
from services.kvstate.sessions.store import SessionStore
from tests.kits.kvstate.session_store import (
    entry,
    made_id,
    now_ms,
    open_store,
    tenant,
)
from tests.kits.servers import GuardedRedis

__all__ = ["tenant"]
OVER, STORE = Verdict.OVER_QUOTA, Verdict.STORE


@pytest.fixture
def url(guarded_redis: GuardedRedis) -> str:
    return guarded_redis.url("kvstate")


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Callable[..., SessionStore]]:
    stores: list[SessionStore] = []

    def open_one(**options: Any) -> SessionStore:
        stores.append(open_store(url, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@pytest.fixture
async def redis(guarded_redis: GuardedRedis) -> AsyncIterator[aioredis.Redis]:
    client = aioredis.Redis.from_url(guarded_redis.url("admin"))
    yield client
    await client.aclose()


async def accounts(redis: aioredis.Redis, tenant: str) -> dict[str, int]:
    """Returns the counts and bytes of the tenant's account, and the real bytes of its stored records."""
    sizes: dict[bytes, bytes] = await redis.hgetall(keys.SIZES_PREFIX + tenant)  # type: ignore[assignment]
    total = int(sizes.pop(b"", 0))
    real = 0
    for name in sizes:
        key = keys.session(tenant, name.decode())
        record, summary = await redis.hmget(key, ["r", "s"])
        beside = OVERHEAD + ID_COPIES * len(name) + len(tenant)
        real += len(record) + len(summary) + beside if record and summary else 0
    return {
        "total": total,
        "sum": sum(map(int, sizes.values())),
        "real": real,
        "ends": await redis.zcard(keys.ENDS_PREFIX + tenant),
        "sessions": len(sizes),
    }


async def test_the_account_is_exact_after_a_storm(
    redis: aioredis.Redis, opened: Callable[..., SessionStore], tenant: str
) -> None:
    stores = [
        opened(
            lives=SessionLives(ttl_s),
            quotas=SessionQuotas(session_max_per_tenant=30, session_bytes_per_tenant=60_000),
        )
        for ttl_s in (0.3, 3600.0)
    ]

    async def visit(number: int) -> None:
        store = stores[number % 2]
        name = made_id(number % 40) if number % 3 else f"n{number % 17}"
        await store.put_records([entry(tenant, name, 1 + number // 40, "x" * (number * 37 % 2500))])
        if number % 7 == 0:
            await store.delete_session(tenant, name)
        if number % 11 == 0:
            await store.pin_session(tenant, name, "g1")

    for _ in range(2):
        await asyncio.gather(*(visit(number) for number in range(300)))
        await asyncio.sleep(0.35)
    await stores[0].tally()
    seen = await accounts(redis, tenant)
    assert seen["total"] == seen["sum"] == seen["real"] <= 60_000
    assert seen["sessions"] == seen["ends"] <= 30
    for name in await redis.hkeys(keys.SIZES_PREFIX + tenant):
        await stores[0].delete_session(tenant, name.decode())  # type: ignore[union-attr]
    assert await accounts(redis, tenant) == {"total": 0, "sum": 0, "real": 0, "ends": 0, "sessions": 0}


async def test_tombstones_do_not_fill_redis(
    redis: aioredis.Redis, opened: Callable[..., SessionStore], tenant: str
) -> None:
    store = opened(quotas=SessionQuotas(session_max_per_tenant=10))
    for number in range(100):
        await store.put_records([entry(tenant, f"s{number}", created_ms=now_ms() + 1000)])
        assert await store.delete_session(tenant, f"s{number}")
    left = [key async for key in redis.scan_iter(match=f"ryz:*{tenant}*", count=1000)]
    assert len(left) <= 10 + 2  # tombstones, their list, and the time that stands for dropped tombstones


@pytest.mark.parametrize("session_id", ["s", "s" * 128, "\N{GRINNING FACE}" * 124])
@pytest.mark.parametrize("text", ["", "x" * 5000])
async def test_what_is_counted_is_what_redis_takes(
    redis: aioredis.Redis, opened: Callable[..., SessionStore], tenant: str, session_id: str, text: str
) -> None:
    store = opened()

    async def used() -> int:
        names = [key async for key in redis.scan_iter(match=f"ryz:*{tenant}*", count=1000)]
        return sum([await redis.memory_usage(name, samples=0) or 0 for name in names])

    before = await used()
    entries = [entry(tenant, f"{number:04d}{session_id}"[:128], text=text) for number in range(300)]
    for first in range(0, 300, 50):
        await store.put_records(entries[first : first + 50])
    taken = await used() - before
    counted = sum(size_of(one) for one in entries)
    assert 0.75 * taken <= counted <= 1.5 * taken
    for one in entries:
        await store.delete_session(tenant, one.session_id)
    assert await used() < 300 * 400  # tombstones hold no session ids


async def test_a_full_redis_refuses_before_anything_has_changed(
    redis: aioredis.Redis, opened: Callable[..., SessionStore], tenant: str
) -> None:
    store = opened(quotas=SessionQuotas(session_max_per_tenant=3))
    await store.put_records([entry(tenant, made_id(n)) for n in range(3)])
    try:
        await redis.config_set("maxmemory", 1_000_000)
        with pytest.raises(StoreFull):
            await store.put_records([entry(tenant, "new", text="x" * 1000)])
    finally:
        await redis.config_set("maxmemory", 0)
    page = await store.list_page(tenant, 1000, None)
    assert {summary.session_id for summary in page.sessions} == {made_id(n) for n in range(3)}
    seen = await accounts(redis, tenant)
    assert (seen["total"], seen["sessions"]) == (seen["real"], 3)
