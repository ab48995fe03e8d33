"""Tests of every block store, in memory and on Redis. The tests write block bytes as ranks do."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio as aioredis

from services.kvstate.blocks.redis_blocks import RedisBlockStore
from services.kvstate.blocks.store import BlockStore, FoundBlocks, FreedBlocks, WrittenBlocks
from services.kvstate.domain import keys
from services.kvstate.redis.link import RedisLink
from services.kvstate.sessions.store import SessionFate
from shared.kv_hash import NAME_BYTES, data_key, head_field
from tests.kits.kvstate.memory_blocks import MemoryBlockStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S

KEPT, DELETED = SessionFate(has_record=True, deleted=False), SessionFate(has_record=False, deleted=True)
PARTS = 2
PART_BYTES = 50
BLOCK_BYTES = PARTS * PART_BYTES


def chain(length: int) -> list[bytes]:
    """Returns block names that no other test has."""
    return [uuid4().bytes for _ in range(length)]


def own_database(url: str) -> str:
    """Returns the URL of a separate database, since eviction and totals cover all blocks of a database."""
    return url.rsplit("/", 1)[0] + "/1"


class Kit:
    """A store, and the operations of its users: ranks write blocks, sessions hold and release them."""

    def __init__(self, store: BlockStore, redis: "aioredis.Redis | None" = None) -> None:
        self.store = store
        self.redis = redis
        self.tenant = f"t{uuid4().hex[:12]}"

    @property
    def memory(self) -> MemoryBlockStore:
        assert isinstance(self.store, MemoryBlockStore)
        return self.store

    async def write(self, names: Sequence[bytes], parts: int = PARTS) -> None:
        for name in names:
            values: dict[Any, Any] = {head_field(head): bytes(PART_BYTES) for head in range(parts)}
            if self.redis is None:
                self.memory.data[name] = values
            else:
                await self.redis.hset(data_key(name), mapping=values)
                await self.redis.expire(data_key(name), 60)

    async def lose(self, name: bytes) -> None:
        if self.redis is None:
            self.memory.data.pop(name, None)
        else:
            await self.redis.delete(data_key(name))

    async def stored(self, name: bytes) -> bool:
        return (
            name in self.memory.data if self.redis is None else bool(await self.redis.exists(data_key(name)))
        )

    async def commit(self, session_id: str, names: Sequence[bytes], priority: int = 0) -> list[int]:
        await self.write(names)
        return await self.register(session_id, names, priority)

    async def register(self, session_id: str, names: Sequence[bytes], priority: int = 0) -> list[int]:
        (done,) = await self.store.register_blocks(
            [WrittenBlocks(self.tenant, session_id, names, PARTS, priority)]
        )
        if session_id:
            await self.store.hold_blocks(self.tenant, session_id, names)
        return done.sizes

    async def alive(self, names: Sequence[bytes]) -> list[bool]:
        return [await self.store.find_blocks([name], 0) == FoundBlocks(1, BLOCK_BYTES) for name in names]


@pytest.fixture(params=["memory", "redis"])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    if request.param == "memory":
        yield Kit(MemoryBlockStore(clock=time.time))
        return
    server: GuardedRedis = request.getfixturevalue("guarded_redis")  # with the access rights of the service
    link = RedisLink(
        own_database(server.url("kvstate")),
        timeout_s=PATIENCE_S,
        max_connections=8,
        name="KV store",
        reason="kv_store",
    )
    store = RedisBlockStore(link, data_ttl_s=3600.0)
    client = aioredis.Redis.from_url(own_database(server.url("admin")))
    await client.flushdb()
    yield Kit(store, client)
    await client.aclose()
    await store.close()
    await store.close()


async def test_what_was_registered_is_found_up_to_the_first_gap(kit: Kit) -> None:
    names = chain(5)
    assert await kit.store.find_blocks(names, 0) == FoundBlocks(0, 0)
    assert await kit.store.find_blocks([], 0) == FoundBlocks(0, 0)
    await kit.write(names)
    assert await kit.store.find_blocks(names, 0) == FoundBlocks(
        0, 0
    )  # written, but not registered as complete
    await kit.register("s", names[:2] + names[3:])
    assert await kit.store.find_blocks(names, 1000) == FoundBlocks(2, 2 * BLOCK_BYTES)
    await kit.register("s", names)
    assert await kit.store.find_blocks(names, 0) == FoundBlocks(5, 5 * BLOCK_BYTES)
    await kit.lose(names[1])
    assert await kit.store.find_blocks(names, 0) == FoundBlocks(1, BLOCK_BYTES)


async def test_blocks_that_are_whole_are_found_before_they_are_registered(kit: Kit) -> None:
    names = chain(4)
    await kit.register("s", [])
    await kit.write(names[:1])
    await kit.register("s", names[:1])
    await kit.write(names[1:])
    assert await kit.store.find_blocks(names, 1000, PARTS) == FoundBlocks(4, BLOCK_BYTES)
    assert await kit.store.find_blocks(names, 0, PARTS + 1) == FoundBlocks(1, BLOCK_BYTES)
    await kit.lose(names[2])
    assert await kit.store.find_blocks(names, 0, PARTS) == FoundBlocks(2, BLOCK_BYTES)
    await kit.lose(names[0])  # registered, but its bytes are gone
    assert await kit.store.find_blocks(names, 0, PARTS) == FoundBlocks(0, 0)


async def test_blocks_without_all_parts_are_passed_over(kit: Kit) -> None:
    names = chain(3)
    await kit.write(names[:1])
    await kit.write(names[1:2], parts=PARTS - 1)
    assert await kit.register("s", names) == [BLOCK_BYTES, -1, -1]
    await kit.write(names)
    (again,) = await kit.store.register_blocks([WrittenBlocks(kit.tenant, "s", names, PARTS)])
    assert again.sizes == [BLOCK_BYTES] * 3
    assert again.fresh == [False, True, True]
    assert again.tenant_bytes == again.total_bytes == 3 * BLOCK_BYTES


async def test_a_registered_block_that_was_lost_can_be_written_again(kit: Kit) -> None:
    names = chain(2)
    await kit.commit("s", names)
    await kit.lose(names[1])
    assert await kit.register("s", names) == [BLOCK_BYTES, -1]
    assert (await kit.store.read_totals()).total.num_bytes == BLOCK_BYTES
    assert await kit.commit("s", names) == [BLOCK_BYTES] * 2
    assert (await kit.store.read_totals()).total.num_bytes == 2 * BLOCK_BYTES


async def test_long_sequences_go_in_steps(kit: Kit) -> None:
    names = chain(2100)
    if kit.redis is None:
        await kit.write(names)
    else:
        pipe = kit.redis.pipeline(transaction=False)
        for name in names:
            pipe.hset(data_key(name), mapping={head_field(head): bytes(PART_BYTES) for head in range(PARTS)})
        await pipe.execute()
    assert await kit.register("s", names) == [BLOCK_BYTES] * 2100
    assert await kit.store.find_blocks(names, 1000) == FoundBlocks(2100, 2100 * BLOCK_BYTES)
    assert (await kit.store.usage_of(kit.tenant, ["s"]))[0].blocks == 2100
    assert len(await kit.store.release_session(kit.tenant, "s")) == 2100


async def test_a_block_goes_with_the_last_session_that_holds_it(kit: Kit) -> None:
    shared, one, two = chain(2), chain(1), chain(1)
    await kit.commit("a", shared + one)
    await kit.commit("b", shared + two)
    assert await kit.store.release_session(kit.tenant, "a") == one
    assert await kit.alive(shared + one + two) == [True, True, False, True]
    assert not await kit.stored(one[0])
    assert await kit.store.release_session(kit.tenant, "a") == []
    assert set(await kit.store.release_session(kit.tenant, "b")) == {*shared, *two}
    totals = await kit.store.read_totals()
    assert (totals.total.num_bytes, totals.total.blocks, totals.holders) == (0, 0, 0)


async def test_a_call_replaces_what_a_session_held_and_its_end_takes_all(kit: Kit) -> None:
    base, old, new = chain(2), chain(3), chain(1)
    await kit.commit("s", base + old)
    assert (await kit.store.usage_of(kit.tenant, ["s"]))[0].blocks == 5
    await kit.commit("s", base + new)
    (usage,) = await kit.store.usage_of(kit.tenant, ["s"])
    assert (usage.blocks, usage.num_bytes) == (3, 3 * BLOCK_BYTES)
    assert await kit.alive(old) == [True] * 3  # replaced in the session, but not evicted yet
    await kit.commit("s", base + old[:1])
    assert (await kit.store.usage_of(kit.tenant, ["s"]))[0].blocks == 3
    assert set(await kit.store.release_session(kit.tenant, "s")) == {*base, *old, *new}


async def test_the_oldest_go_first_and_of_a_sequence_its_tail(kit: Kit) -> None:
    old, new = chain(3), chain(3)
    await kit.commit("", old)
    await asyncio.sleep(0.01)
    await kit.commit("", new)
    assert await kit.store.evict_blocks(1) == FreedBlocks(1, BLOCK_BYTES)
    assert await kit.alive(old + new) == [True, True, False, True, True, True]
    assert await kit.store.evict_blocks(BLOCK_BYTES + 1) == FreedBlocks(2, 2 * BLOCK_BYTES)
    assert await kit.alive(old + new) == [True, False, False, True, True, False]
    assert not await kit.stored(old[2])
    assert await kit.store.evict_blocks(10**9) == FreedBlocks(3, 3 * BLOCK_BYTES)
    assert await kit.store.evict_blocks(10**9) == FreedBlocks(0, 0)


async def test_use_and_priority_keep_blocks_longer(kit: Kit) -> None:
    dear, used, plain = chain(1), chain(1), chain(1)
    await kit.commit("", dear, priority=1)
    await kit.commit("", used)
    await asyncio.sleep(0.01)
    await kit.commit("", plain)
    await asyncio.sleep(0.01)
    await kit.register("", used)
    await asyncio.sleep(0.01)
    for gone in (plain, used, dear):
        assert await kit.alive(gone) == [True]
        await kit.store.evict_blocks(1)
        assert await kit.alive(gone) == [False]


async def test_what_is_leased_or_kept_is_never_evicted(kit: Kit) -> None:
    leased, kept, free = chain(2), chain(2), chain(1)
    await kit.commit("", leased)
    await kit.commit("", kept)
    await kit.commit("", free)
    assert (await kit.store.find_blocks(leased, 150)).blocks == 2
    assert (await kit.store.read_totals()).leases == 2
    assert await kit.store.evict_blocks(10**9, keep=kept) == FreedBlocks(1, BLOCK_BYTES)
    assert await kit.store.evict_blocks(10**9, keep=kept) == FreedBlocks(0, 0)
    await asyncio.sleep(0.2)
    assert (await kit.store.read_totals()).leases == 0
    assert await kit.store.evict_blocks(10**9, keep=kept) == FreedBlocks(2, 2 * BLOCK_BYTES)


async def test_a_tenants_own_blocks_can_be_evicted_alone(kit: Kit) -> None:
    mine, theirs = chain(2), chain(1)
    await kit.commit("", mine)
    me, kit.tenant = kit.tenant, kit.tenant + "x"
    await kit.commit("", theirs)
    assert await kit.store.evict_blocks(10**9, tenant=kit.tenant) == FreedBlocks(1, BLOCK_BYTES)
    assert await kit.store.evict_blocks(10**9, tenant=kit.tenant) == FreedBlocks(0, 0)
    totals = await kit.store.read_totals()
    assert {who: account.num_bytes for who, account in totals.accounts.items()} == {
        me: 2 * BLOCK_BYTES,
        kit.tenant: 0,
    }
    assert await kit.store.forget_blocks(mine) == FreedBlocks(2, 2 * BLOCK_BYTES)


async def test_byte_seconds_grow_while_bytes_are_kept_and_never_fall(kit: Kit) -> None:
    names = chain(10)
    await kit.commit("s", names)
    await asyncio.sleep(0.1)
    (first,) = await kit.store.usage_of(kit.tenant, ["s"])
    total = (await kit.store.read_totals()).accounts[kit.tenant]
    at_least = 0.09 * 10 * BLOCK_BYTES
    assert first.byte_seconds >= at_least
    assert total.byte_seconds >= at_least
    await kit.store.evict_blocks(10**9)
    await kit.store.check_holders({(kit.tenant, "s"): KEPT}, recheck_ms=0, grace_ms=60_000)
    (later,) = await kit.store.usage_of(kit.tenant, ["s"])
    assert (later.num_bytes, later.blocks) == (0, 0)
    assert later.byte_seconds >= first.byte_seconds
    await asyncio.sleep(0.05)
    (last,) = await kit.store.usage_of(kit.tenant, ["s"])
    assert last.byte_seconds == pytest.approx(later.byte_seconds, abs=0.01)
    assert (await kit.store.read_totals()).accounts[kit.tenant].byte_seconds >= total.byte_seconds


async def test_unknown_sessions_use_nothing(kit: Kit) -> None:
    assert [tuple(one) for one in await kit.store.usage_of(kit.tenant, ["x", "y"])] == [(0, 0, 0.0)] * 2
    assert await kit.store.usage_of(kit.tenant, []) == []


async def test_holdings_end_with_their_session(kit: Kit) -> None:
    kept, first_turn, deleted = chain(1), chain(1), chain(1)
    for name, names in (("kept", kept), ("new", first_turn), ("deleted", deleted)):
        await kit.commit(name, names)
    fates = {"kept": KEPT, "new": SessionFate(has_record=False, deleted=False), "deleted": DELETED}
    due = await kit.store.due_holders(100)
    assert sorted(due) == sorted((kit.tenant, name) for name in fates)
    assert len(await kit.store.due_holders(2)) == 2
    answers = {key: fates[key[1]] for key in due}
    assert await kit.store.check_holders(answers, recheck_ms=0, grace_ms=60_000) == 1
    assert await kit.alive(kept + first_turn + deleted) == [True, True, False]
    await asyncio.sleep(0.02)
    assert await kit.store.check_holders(answers, recheck_ms=60_000, grace_ms=10) == 1
    assert await kit.alive(kept + first_turn) == [True, False]
    assert await kit.store.due_holders(100) == []
    assert await kit.store.check_holders({}, recheck_ms=0, grace_ms=0) == 0


async def test_facts_without_bytes_go(kit: Kit) -> None:
    names = chain(3)
    await kit.commit("s", names)
    await kit.lose(names[0])
    cursor, lost = (0, 0), 0
    for _ in range(100):
        step = await kit.store.reconcile_step(cursor, orphan_ms=60_000)
        lost, cursor = lost + step.lost, step.cursor
        if cursor == (0, 0):
            break
    assert lost == 1
    assert (await kit.store.read_totals()).total.blocks == 2


async def test_one_sweeps_at_a_time(kit: Kit) -> None:
    assert await kit.store.become_sweeper("a", 100)
    assert not await kit.store.become_sweeper("b", 100)
    await asyncio.sleep(0.15)
    assert await kit.store.become_sweeper("b", 100)


async def test_bytes_that_were_never_registered_expire(redis_url: str) -> None:
    url = own_database(redis_url)
    link = RedisLink(url, timeout_s=PATIENCE_S, max_connections=2, name="KV store", reason="kv_store")
    store, client = RedisBlockStore(link, data_ttl_s=3600.0), aioredis.Redis.from_url(url)
    kit = Kit(store, client)
    orphan, known = chain(1)[0], chain(1)[0]
    await kit.commit("s", [known])
    await kit.write([orphan])
    await client.persist(data_key(orphan))  # the writer died before it set the expiry
    cursor = (0, 0)
    for _ in range(100):
        cursor = (await store.reconcile_step(cursor, orphan_ms=60_000)).cursor
        if cursor == (0, 0):
            break
    assert 0 < await client.pttl(data_key(orphan)) <= 60_000
    assert await client.pttl(data_key(known)) > 3_000_000
    await client.aclose()
    await store.close()


def test_names_have_the_length_that_scripts_split_at() -> None:
    assert NAME_BYTES == 16


async def test_after_a_storm_of_calls_the_accounts_agree_with_the_blocks(kit: Kit) -> None:
    random = Random(7)
    base = chain(3)
    sequences = [base + chain(random.randrange(1, 6)) for _ in range(12)]

    async def one(number: int) -> None:
        names, session = random.choice(sequences), f"s{number % 5}"
        match number % 6:
            case 0 | 1 | 2:
                await kit.commit(session, names[: random.randrange(1, len(names) + 1)])
            case 3:
                await kit.store.evict_blocks(random.randrange(400))
            case 4:
                await kit.store.release_session(kit.tenant, session)
            case _:
                await kit.lose(random.choice(names)) if number % 4 else None
                await kit.store.reconcile_step((0, 0), orphan_ms=60_000)

    for first in range(0, 300, 20):
        await asyncio.gather(*(one(first + at) for at in range(20)))
    await kit.store.reconcile_step((0, 0), orphan_ms=60_000)
    everything = {name for names in sequences for name in names}
    alive = sum(await kit.alive(sorted(everything)))
    totals = await kit.store.read_totals()
    assert (totals.total.blocks, totals.total.num_bytes) == (alive, alive * BLOCK_BYTES)
    assert totals.accounts[kit.tenant][:2] == totals.total[:2]
    for session in range(5):
        await kit.store.release_session(kit.tenant, f"s{session}")
    await kit.store.evict_blocks(10**9)
    assert (await kit.store.read_totals()).total[:2] == (0, 0)
    if kit.redis is not None:
        left = {bytes(key) async for key in kit.redis.scan_iter("ryz:kv:*")}
        assert left <= {keys.ACCOUNTS.encode()}  # no keys of references, orders, leases or bytes


async def test_names_of_tenants_do_not_stay_for_ever(guarded_redis: GuardedRedis) -> None:
    redis = aioredis.Redis.from_url(own_database(guarded_redis.url("admin")))
    link = RedisLink(
        own_database(guarded_redis.url("kvstate")),
        timeout_s=PATIENCE_S,
        max_connections=2,
        name="KV",
        reason="r",
    )
    store, now_ms = RedisBlockStore(link, data_ttl_s=60.0), time.time_ns() // 1_000_000
    long_ago = now_ms - 2 * 86_400_000
    accounts: dict[Any, Any] = {
        "idle": f"0:0:7.5:{long_ago}",
        "lately": f"0:0:7.5:{now_ms}",
        "busy": f"10:1:7.5:{long_ago}",
    }
    try:
        await redis.delete(keys.ACCOUNTS)
        await redis.hset(keys.ACCOUNTS, mapping=accounts)
        assert set((await store.read_totals()).accounts) == {"lately", "busy"}
        assert await redis.hkeys(keys.ACCOUNTS) == [b"lately", b"busy"]
    finally:
        await redis.delete(keys.ACCOUNTS)
        await redis.aclose()
        await store.close()
