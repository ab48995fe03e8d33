"""KV blocks and sessions through the service: the view of leaders, routers and gateways."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
import redis.asyncio as aioredis

from services.kvstate.domain import keys
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import SessionsClient
from shared.client.calls.blocks_client import BlocksClient
from shared.codec import decode, decode_reply, encode
from shared.errors import InvalidRequest, SessionNotFound
from shared.kv_hash import data_key, split
from shared.lifecycle import Service
from shared.messages import (
    BlocksCommitted,
    BlocksFound,
    Pinned,
    ServiceStatus,
    SessionGone,
    StatusQuery,
    Wire,
)
from tests.kits.kvstate.service import PARTS, chain, held, new_tenant, record, running, write
from tests.kits.waiting import PATIENCE_S, until

M = TypeVar("M", bound=Wire)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    client = aioredis.Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def kvstate(nats_url: str, redis_url: str) -> AsyncIterator[Service]:
    async with running(nats_url, redis_url) as service:
        yield service


@pytest.fixture
def blocks(kvstate: Service, nats_bus: NatsBus) -> BlocksClient:
    return BlocksClient(nats_bus, timeout_s=PATIENCE_S)


@pytest.fixture
def sessions(kvstate: Service, nats_bus: NatsBus) -> SessionsClient:
    return SessionsClient(nats_bus, timeout_s=PATIENCE_S)


async def listen(bus: NatsBus, subject: str, kind: type[M]) -> list[M]:
    heard: list[M] = []

    async def hear(message: Message) -> None:
        heard.append(decode(message.data, kind))

    await bus.subscribe(subject, hear)
    await bus.flush()
    await bus.flush()
    return heard


async def test_blocks_are_committed_found_and_seen_beside_the_session(
    blocks: BlocksClient, sessions: SessionsClient, redis: aioredis.Redis
) -> None:
    tenant, names = new_tenant(), chain(5)
    await write(redis, names[:4])
    assert await blocks.find(names) == BlocksFound(count=0)
    assert await blocks.commit("g1", [held(tenant, "s", names)]) == BlocksCommitted(stored=4)
    assert await blocks.find(names, lease_ms=1000) == BlocksFound(count=4, num_bytes=4 * PARTS * 1000)
    assert await redis.ttl(data_key(names[0])) > 60
    with pytest.raises(SessionNotFound):
        await sessions.describe(tenant, "s")  # no record yet
    await sessions.commit([record(tenant)])
    summary = await sessions.describe(tenant, "s")
    assert (summary.kv_blocks, summary.kv_bytes) == (4, 4 * PARTS * 1000)
    assert summary.kv_byte_seconds > 0
    (listed,) = (await sessions.list(tenant)).sessions
    assert (listed.kv_blocks, listed.kv_bytes) == (4, 4 * PARTS * 1000)
    with pytest.raises(SessionNotFound):
        await sessions.describe(new_tenant(), "s")


async def test_deleting_a_session_takes_its_blocks_and_tells_all(
    blocks: BlocksClient, sessions: SessionsClient, redis: aioredis.Redis, nats_bus: NatsBus
) -> None:
    tenant, shared, own = new_tenant(), chain(1), chain(2)
    heard = await listen(nats_bus, subjects.SESSION_GONE, SessionGone)
    await write(redis, shared + own)
    await sessions.commit([record(tenant, "s"), record(tenant, "t")])
    await blocks.commit("g1", [held(tenant, "s", shared + own), held(tenant, "t", shared)])
    await sessions.delete(tenant, "s")
    await until(lambda: len(heard) > 0)
    assert (heard[0].tenant, heard[0].session_id) == (tenant, "s")
    assert split(heard[0].names) == own
    assert await redis.exists(*(data_key(name) for name in own)) == 0
    assert (await blocks.find(shared)).count == 1
    # a late commit of a turn that ran during the deletion changes nothing
    await write(redis, own)
    assert (await blocks.commit("g1", [held(tenant, "s", shared + own)])).stored == 0
    assert (await sessions.commit([record(tenant, "s", 2)])).stale == [0]
    with pytest.raises(SessionNotFound):
        await sessions.describe(tenant, "s")
    with pytest.raises(SessionNotFound):
        await sessions.delete(tenant, "s")


async def test_a_pin_is_reported_kept_and_listed(
    kvstate: Service, sessions: SessionsClient, nats_bus: NatsBus
) -> None:
    tenant = new_tenant()
    heard = await listen(nats_bus, subjects.SESSION_PINNED, Pinned)
    with pytest.raises(SessionNotFound, match="'s'"):
        await sessions.pin(tenant, "s", "g1")
    await sessions.commit([record(tenant), record(tenant, "other")])
    assert (await sessions.pin(tenant, "s", "g1")).pinned_group == "g1"
    await sessions.commit([record(tenant, version=2)])
    summary = await sessions.describe(tenant, "s")
    assert (summary.version, summary.pinned_group) == (2, "g1")
    expected = Pinned(tenant=tenant, session_id="s", group="g1")
    assert [pin for pin in (await sessions.pins()).pins if pin.tenant == tenant] == [expected]
    assert (await sessions.pin(tenant, "s", "")).pinned_group == ""
    assert [pin for pin in (await sessions.pins()).pins if pin.tenant == tenant] == []
    await until(lambda: len(heard) == 2)
    assert heard == [expected, Pinned(tenant=tenant, session_id="s")]


async def test_quotas_and_limits_come_from_settings(
    nats_url: str, redis_url: str, nats_bus: NatsBus, redis: aioredis.Redis
) -> None:
    tenant, names = new_tenant(), chain(4)
    client = BlocksClient(nats_bus, timeout_s=PATIENCE_S)
    await write(redis, names)
    async with running(nats_url, redis_url, kv_session_bytes=2 * PARTS * 1000 + 1):
        done = await client.commit("g1", [held(tenant, "s", names)])
        assert done == BlocksCommitted(stored=2, over_quota=[0])
        assert (await client.find(names)).count == 2


@pytest.mark.parametrize("names", [b"x", bytes(17)])
async def test_names_that_are_cut_are_refused(blocks: BlocksClient, names: bytes) -> None:
    with pytest.raises(InvalidRequest, match="16 bytes each"):
        await blocks.find([names])
    with pytest.raises(InvalidRequest, match="16 bytes each"):
        await blocks.commit("g1", [held("t", "s", [names])])


async def test_sessions_that_expire_leave_no_blocks(
    nats_url: str, redis_url: str, nats_bus: NatsBus, redis: aioredis.Redis
) -> None:
    tenant, names = new_tenant(), chain(2)
    client, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    await write(redis, names)
    async with running(nats_url, redis_url, grace_s=1) as service:
        await sessions.commit([record(tenant)])
        await client.commit("g1", [held(tenant, "s", names)])
        await redis.delete(keys.session(tenant, "s"))
        await asyncio.sleep(1.1)
        await redis.zadd(keys.HOLDERS, {keys.member(tenant, "s"): 0})  # due for the next sweep
        labels = {"reason": "session_expired"}
        name = "ryz_kvstate_blocks_evicted_total"
        await until(lambda: (service.registry.get_sample_value(name, labels) or 0) >= 2)
        assert (await client.find(names)).count == 0


async def test_status_and_metrics_show_the_tier(
    kvstate: Service, blocks: BlocksClient, nats_bus: NatsBus, redis: aioredis.Redis
) -> None:
    tenant, names = new_tenant(), chain(3)
    await write(redis, names)
    await blocks.commit("g1", [held(tenant, "s", names)])
    await blocks.find([*names, *chain(1)], lease_ms=60_000)

    def value(name: str, **labels: str) -> float:
        return kvstate.registry.get_sample_value(f"ryz_kvstate_{name}", labels) or 0

    await until(lambda: value("tenant_bytes", tenant=tenant) == 3 * PARTS * 1000)
    assert value("find_tokens_total", outcome="hit") == 48
    assert value("find_tokens_total", outcome="miss") == 16
    await until(lambda: value("tier_leases") >= 3)
    assert value("tier_holders") >= 1
    reply = await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=PATIENCE_S)
    detail = decode_reply(reply.data, ServiceStatus).detail
    assert detail["kv_store"] == "up"
    assert detail["kv_blocks"] >= 3


async def test_a_find_of_2000_tokens_takes_about_a_millisecond(
    blocks: BlocksClient, redis: aioredis.Redis
) -> None:
    """Prints the measured time without asserting it, since the machine may be busy."""
    tenant, names = new_tenant(), chain(125)
    await write(redis, names)
    await blocks.commit("g1", [held(tenant, "s", names)])
    times = []
    for _ in range(50):
        started = time.perf_counter()
        assert (await blocks.find(names, lease_ms=100)).count == 125
        times.append(time.perf_counter() - started)
    print(f"find of 125 names over the bus: median {sorted(times)[25] * 1e3:.2f} ms")
