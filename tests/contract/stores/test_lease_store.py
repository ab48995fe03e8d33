"""Tests of every store of leases: in memory and on Redis, with the rights of the service's user."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from services.kvstate.domain import keys
from services.kvstate.leases.redis_leases import RedisLeaseStore
from services.kvstate.leases.store import LeaseState, LeaseStore
from services.kvstate.redis.link import RedisLink
from tests.kits.kvstate.memory_leases import MemoryLeaseStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S


def redis_link(server: GuardedRedis) -> RedisLink:
    return RedisLink(
        server.url("kvstate"), timeout_s=PATIENCE_S, max_connections=2, name="store", reason="session_store"
    )


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LeaseStore]:
    made: LeaseStore
    if request.param == "memory":
        made = MemoryLeaseStore(time.time)
    else:
        made = RedisLeaseStore(redis_link(request.getfixturevalue("guarded_redis")))
    yield made
    await made.close()


@pytest.fixture
def name() -> str:
    return f"l-{uuid4().hex[:12].translate(str.maketrans('0123456789', 'ghijklmnop'))}"


async def test_one_holder_has_a_lease_and_prolongs_it_in_its_epoch(store: LeaseStore, name: str) -> None:
    first = await store.claim(name, "a", 60_000)
    assert (first.holder, first.ttl_ms) == ("a", 60_000)
    other = await store.claim(name, "b", 60_000)
    assert (other.holder, other.epoch) == ("a", first.epoch)
    assert 0 < other.ttl_ms <= 60_000
    assert await store.claim(name, "a", 30_000) == LeaseState("a", first.epoch, 30_000)
    assert (await store.claim(name, "b", 60_000)).ttl_ms <= 30_000


async def test_leases_of_other_names_are_apart(store: LeaseStore, name: str) -> None:
    await store.claim(name, "a", 60_000)
    assert (await store.claim(name + "-x", "b", 60_000)).holder == "b"


async def test_a_lease_that_is_given_back_is_free_and_the_next_epoch_is_higher(
    store: LeaseStore, name: str
) -> None:
    first = await store.claim(name, "a", 60_000)
    assert (await store.claim(name, "b", 0)).holder == "a"  # not b's to give back
    assert (await store.claim(name, "a", 60_000)).epoch == first.epoch
    given = LeaseState("", first.epoch, 0)
    assert await store.claim(name, "a", 0) == given
    assert await store.claim(name, "a", 0) == given  # sent twice
    second = await store.claim(name, "b", 60_000)
    assert second.holder == "b"
    assert second.epoch > first.epoch
    assert (await store.claim(name, "a", 0)).holder == "b"  # sent again, late


async def test_a_lease_that_has_run_out_is_taken_in_a_higher_epoch_also_by_the_same_holder(
    store: LeaseStore, name: str
) -> None:
    first = await store.claim(name, "a", 1)
    await asyncio.sleep(0.01)
    second = await store.claim(name, "b", 1)
    await asyncio.sleep(0.01)
    third = await store.claim(name, "b", 60_000)
    assert first.epoch < second.epoch < third.epoch


async def test_the_epoch_grows_over_a_loss_of_the_store(guarded_redis: GuardedRedis, name: str) -> None:
    link = redis_link(guarded_redis)
    store = RedisLeaseStore(link)
    epoch = 0
    for holder in "abab":  # taken several times: the epoch is then not the time of the first taking
        epoch = (await store.claim(name, holder, 60_000)).epoch
        await store.claim(name, holder, 0)
    await asyncio.sleep(0.01)
    await link.pipeline([("DEL", f"{keys.LEASE_PREFIX}{name}")])
    assert (await store.claim(name, "a", 60_000)).epoch > epoch
    await store.close()


async def test_the_epoch_is_above_what_was_heard_whatever_the_clock_says(
    store: LeaseStore, name: str
) -> None:
    ahead = int(time.time() * 1000) + 3_600_000  # the store was emptied, and its clock set back by an hour
    first = await store.claim(name, "a", 60_000, ahead)
    assert first.epoch == ahead + 1
    assert (await store.claim(name, "a", 60_000, first.epoch)).epoch == first.epoch, "that is its own"
    assert (await store.claim(name, "b", 60_000, ahead + 9)).epoch == first.epoch, "it has not the lease"
    assert (await store.claim(name, "a", 60_000, ahead + 9)).epoch == ahead + 10
    await store.claim(name, "a", 0)
    assert (await store.claim(name, "b", 60_000)).epoch == ahead + 11


async def test_a_lease_does_not_last_longer_because_the_clock_was_set_back(
    guarded_redis: GuardedRedis, name: str
) -> None:
    link = redis_link(guarded_redis)
    store = RedisLeaseStore(link)
    await store.claim(name, "a", 30)
    in_an_hour = int(time.time() * 1000) + 3_600_000
    await link.pipeline([("HSET", f"{keys.LEASE_PREFIX}{name}", "u", in_an_hour)])
    held = await store.claim(name, "b", 60_000)
    assert (held.holder, held.ttl_ms) == ("a", 30)
    await asyncio.sleep(0.04)
    assert (await store.claim(name, "b", 60_000)).holder == "b"
    await store.close()
    now = [3600.0]
    plain = MemoryLeaseStore(lambda: now[0])
    await plain.claim(name, "a", 30)
    now[0] = 0.0
    assert (await plain.claim(name, "b", 60_000)).ttl_ms == 30


async def test_of_claims_at_the_same_time_one_has_it(store: LeaseStore, name: str) -> None:
    holders = [f"h{number}" for number in range(16)]
    found = await asyncio.gather(*(store.claim(name, holder, 60_000) for holder in holders))
    assert len({(state.holder, state.epoch) for state in found}) == 1
