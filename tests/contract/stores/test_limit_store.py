"""Tests of every store of limits: in memory and on Redis, with the rights of the service's user."""

import asyncio
import time
from collections.abc import AsyncIterator
from random import Random
from uuid import uuid4

import pytest

from services.kvstate.domain import keys
from services.kvstate.limits.redis_limits import RedisLimitStore
from services.kvstate.limits.store import Leased, LimitStore, PoolAsk, TakeAsk
from services.kvstate.redis.link import RedisLink
from shared.limits.windows import windows_around
from tests.kits.kvstate.memory_limits import MemoryLimitStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S

HOLD_MS = 60


def redis_link(server: GuardedRedis) -> RedisLink:
    return RedisLink(
        server.url("kvstate"), timeout_s=PATIENCE_S, max_connections=2, name="store", reason="session_store"
    )


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LimitStore]:
    made: LimitStore
    if request.param == "memory":
        made = MemoryLimitStore(time.time, HOLD_MS)
    else:
        made = RedisLimitStore(redis_link(request.getfixturevalue("guarded_redis")), HOLD_MS)
    yield made
    await made.close()


def day_windows() -> tuple[int, ...]:
    return windows_around("day", int(time.time() * 1000), "UTC")


def pool(name: str, limit: int, *, began_ms: int = 0, had: int = 0, ahead: int = 0, used: int = 0) -> PoolAsk:
    return PoolAsk(name, limit, began_ms, had, ahead, day_windows(), used)


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:12]}::requests:day"


async def ask(store: LimitStore, holder: str, number: int, one: PoolAsk, units: int = 0) -> tuple[int, int]:
    """Granted and left of one limit."""
    takes = [TakeAsk(1, [0], [units])] if units else []
    found = await store.lease(holder, number, [one], takes)
    return found.pools[0].granted, found.pools[0].left


async def test_the_sum_over_holders_never_exceeds_the_limit(store: LimitStore, name: str) -> None:
    began = day_windows()[1]
    assert await ask(store, "a", 1, pool(name, 10), 6) == (6, 4)
    assert await ask(store, "b", 1, pool(name, 10), 5) == (0, 4), "all of a request's units, or none"
    assert await ask(store, "b", 2, pool(name, 10), 4) == (4, 0)
    assert await ask(store, "a", 2, pool(name, 10, began_ms=began, had=6), 1) == (0, 0)


async def test_what_a_holder_says_that_it_has_replaces_what_was_counted(store: LimitStore, name: str) -> None:
    began = day_windows()[1]
    assert await ask(store, "a", 1, pool(name, 10), 6) == (6, 4)
    given_back = pool(name, 10, began_ms=began, had=2)
    assert await ask(store, "a", 2, given_back) == (0, 8)
    owed = pool(name, 10, began_ms=began, had=13)
    assert await ask(store, "a", 3, owed) == (0, 0), "more was used than leased"
    assert await ask(store, "b", 1, pool(name, 10), 1) == (0, 0)


async def test_a_reply_that_was_lost_costs_nothing(store: LimitStore, name: str) -> None:
    began = day_windows()[1]
    await ask(store, "a", 1, pool(name, 10), 6)
    await ask(store, "a", 2, pool(name, 10, began_ms=began, had=6), 4)  # its reply is lost
    assert await ask(store, "a", 3, pool(name, 10, began_ms=began, had=6), 4) == (4, 0)
    assert await ask(store, "a", 3, pool(name, 10, began_ms=began, had=6), 4) == (4, 0), "sent twice"


async def test_a_call_that_comes_late_changes_nothing(store: LimitStore, name: str) -> None:
    began = day_windows()[1]
    await ask(store, "a", 2, pool(name, 10), 6)
    assert await ask(store, "a", 1, pool(name, 10), 3) == (0, 4)
    assert await ask(store, "a", 3, pool(name, 10, began_ms=began, had=6), 4) == (4, 0)


async def test_had_of_another_window_does_not_count(store: LimitStore, name: str) -> None:
    assert await ask(store, "a", 1, pool(name, 10, began_ms=5, had=9), 10) == (10, 0)


async def test_a_request_gets_units_of_all_limits_or_of_none(store: LimitStore, name: str) -> None:
    pools = [pool(name, 100), pool(name + "x", 10)]
    found = await store.lease("a", 1, pools, [TakeAsk(5, [0, 1], [3, 4])])
    assert [(one.granted, one.left) for one in found.pools] == [(6, 94), (8, 2)], "two of the five fit"
    assert {one.began_ms for one in found.pools} == {day_windows()[1]}
    assert {one.ends_ms for one in found.pools} == {day_windows()[2]}
    assert abs(found.now_ms / 1000 - time.time()) < 60


async def test_what_is_taken_ahead_is_small_when_little_is_left(store: LimitStore, name: str) -> None:
    found = await store.lease("a", 1, [pool(name, 1000, ahead=500)], [])
    share = 1000 // (4 * found.holders)
    assert found.pools[0].granted == min(500, share)
    other = name + "x"
    found = await store.lease("a", 2, [pool(other, 1000, ahead=500, used=997)], [])
    assert found.pools[0].granted == 0
    assert (await ask(store, "a", 3, pool(other, 1000), 3)) == (3, 0), "requests get the last ones"


async def test_what_was_used_elsewhere_counts_if_it_is_more(store: LimitStore, name: str) -> None:
    began = day_windows()[1]
    assert await ask(store, "a", 1, pool(name, 10, used=4), 5) == (5, 1)
    assert await ask(store, "a", 2, pool(name, 10, began_ms=began, had=5), 1) == (1, 4), "the larger of two"
    assert await ask(store, "a", 3, pool(name, 10, began_ms=began, had=6, used=9), 2) == (0, 1)
    assert await ask(store, "a", 4, pool(name, 10, began_ms=began, had=6), 2) == (0, 1), "it does not shrink"


async def test_running_requests_of_a_holder_that_is_gone_are_free_again(store: LimitStore, name: str) -> None:
    def running(had: int) -> PoolAsk:
        return PoolAsk(name, 3, had=had)

    async def took(holder: str, number: int, had: int, units: int) -> Leased:
        return await store.lease(holder, number, [running(had)], [TakeAsk(1, [0], [units])])

    assert (await took("a", 1, 0, 2)).pools[0][:2] == (2, 1)
    assert (await took("b", 1, 0, 2)).pools[0][:2] == (0, 1)
    until = time.monotonic() + 30
    number = 1
    while (found := await took("b", number + 1, 0, 3)).pools[0].granted == 0:
        number += 1
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    assert found.pools[0][:2] == (3, 0)
    assert (await took("a", 2, 2, 1)).pools[0].granted == 0, "it was away for too long, and others have them"


async def test_counts_expire_with_their_window(guarded_redis: GuardedRedis, name: str) -> None:
    link = redis_link(guarded_redis)
    store = RedisLimitStore(link)
    await ask(store, "a", 1, pool(name, 10), 6)
    times = day_windows()
    (left_ms,) = await link.pipeline([("PTTL", f"{keys.LIMIT_PREFIX}{name}:{times[1]}")])
    assert 0 < left_ms <= times[2] - times[1] + 120_000
    await store.close()


async def test_a_store_that_was_emptied_learns_from_the_holders(
    guarded_redis: GuardedRedis, name: str
) -> None:
    link = redis_link(guarded_redis)
    store = RedisLimitStore(link)
    began = day_windows()[1]
    await ask(store, "a", 1, pool(name, 10), 6)
    await link.pipeline([("DEL", f"{keys.LIMIT_PREFIX}{name}:{began}")])
    assert await ask(store, "a", 2, pool(name, 10, began_ms=began, had=6)) == (0, 4)
    assert await ask(store, "b", 1, pool(name, 10), 5) == (0, 4)
    await store.close()


async def test_the_script_and_the_plain_store_agree(guarded_redis: GuardedRedis, name: str) -> None:
    link = redis_link(guarded_redis)
    await link.pipeline([("DEL", keys.LIMIT_HOLDERS)])  # holders of other tests count as well
    store, plain, random = RedisLimitStore(link), MemoryLimitStore(time.time), Random(7)
    windows = day_windows()
    had = {letter: [0, 0] for letter in "abc"}
    for number in range(1, 200):
        letter = random.choice("abc")
        mine = had[letter] = [max(0, one - random.randrange(9) + random.randrange(7)) for one in had[letter]]
        pools = [
            PoolAsk(
                f"{name}{at}", limit, windows[1], mine[at], random.randrange(60), windows, random.randrange(9)
            )
            for at, limit in enumerate((50, 1000))
        ]
        takes = [
            TakeAsk(random.randrange(1, 4), [0, 1], [random.randrange(9), random.randrange(9)])
            for _ in range(random.randrange(3))
        ]
        sent = number if random.random() < 0.9 else number // 2  # late
        found = await store.lease(f"{name[:13]}-{letter}", sent, pools, takes)
        expected = plain.lease_now(f"{name[:13]}-{letter}", sent, pools, takes)
        assert (found.pools, found.holders) == (expected.pools, expected.holders)
        had[letter] = [mine[at] + found.pools[at].granted for at in (0, 1)]
    await store.close()


async def test_an_emptied_store_lets_pass_no_more_than_the_limit(
    guarded_redis: GuardedRedis, name: str
) -> None:
    link = redis_link(guarded_redis)
    store, plain = RedisLimitStore(link), MemoryLimitStore(time.time)
    began = day_windows()[1]
    for holder in "abc":
        assert await ask(store, holder, 1, pool(name, 60), 10)
    await link.pipeline([("DEL", f"{keys.LIMIT_PREFIX}{name}:{began}")])
    knows = pool(name, 60, began_ms=began, had=10)._replace(seen=30)
    for one in (store, plain):
        assert await ask(one, "a", 2, knows, 20) == (20, 10)
        assert await ask(one, "b", 2, knows, 20) == (0, 10)
        assert await ask(one, "c", 2, knows, 10) == (10, 0)
        assert await ask(one, "b", 3, knows) == (0, 0)
    await store.close()
