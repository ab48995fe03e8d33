"""Sessions and KV blocks in separate stores: each holds only its own keys, and a deletion covers both."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis.asyncio as aioredis

from services.kvstate.blocks.old_block_cleanup import remove_leftovers
from services.kvstate.redis.link import RedisLink
from shared.bus.nats import NatsBus
from shared.client import SessionsClient
from shared.client.calls.blocks_client import BlocksClient
from shared.errors import Unavailable
from shared.kv_hash import data_key
from shared.messages import BlocksFound
from tests.kits.kvstate.service import chain, held, new_tenant, record, running, write
from tests.kits.servers import RedisServer
from tests.kits.waiting import PATIENCE_S, until


class Pair(NamedTuple):
    """Two Redis servers and their clients."""

    sessions_server: RedisServer
    kv_server: RedisServer
    sessions: aioredis.Redis
    kv: aioredis.Redis


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    servers = [RedisServer(tmp_path), RedisServer(tmp_path)]
    for server in servers:
        server.start()
    clients = [aioredis.Redis.from_url(server.url) for server in servers]
    yield Pair(servers[0], servers[1], clients[0], clients[1])
    for client in clients:
        await client.aclose()
    for server in servers:
        server.stop()


async def names_in(client: aioredis.Redis) -> set[str]:
    found = [key.decode(errors="replace") async for key in client.scan_iter()]
    return {":".join(key.split(":")[:2]) for key in found}


async def test_each_store_has_its_own_keys_and_deleting_goes_across(
    nats_url: str, nats_bus: NatsBus, pair: Pair
) -> None:
    tenant, names = new_tenant(), chain(3)
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    async with running(nats_url, pair.sessions_server.url, kv_redis_url=pair.kv_server.url):
        await write(pair.kv, names)
        await sessions.commit([record(tenant)])
        assert (await blocks.commit("g1", [held(tenant, "s", names)])).stored == 3
        assert (await sessions.describe(tenant, "s")).kv_blocks == 3
        assert await names_in(pair.kv) == {"ryz:kv"}
        assert "ryz:kv" not in await names_in(pair.sessions)
        await sessions.delete(tenant, "s")
        assert await blocks.find(names) == BlocksFound(count=0)
        # a late commit restores nothing
        await write(pair.kv, names)
        assert (await blocks.commit("g1", [held(tenant, "s", names)])).stored == 0


async def test_kv_goes_on_without_the_session_store_and_no_session_is_taken_for_over(
    nats_url: str, nats_bus: NatsBus, pair: Pair
) -> None:
    tenant, names = new_tenant(), chain(3)
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    options = {"kv_redis_url": pair.kv_server.url, "grace_s": 1, "redis_timeout_s": 0.5}
    async with running(nats_url, pair.sessions_server.url, **options) as service:
        await sessions.commit([record(tenant)])
        pair.sessions_server.stop(kill=True)
        await until(lambda: service.status().detail["store"] == "away")
        with pytest.raises(Unavailable):
            await sessions.get(tenant, "s")
        await write(pair.kv, names)
        assert (await blocks.commit("g1", [held(tenant, "s", names)])).stored == 3
        await asyncio.sleep(1.5)  # longer than the grace, with about thirty sweeps
        assert (await blocks.find(names)).count == 3
        assert service.status().detail["kv_store"] == "up"
        pair.sessions_server.start()  # the restarted store is empty, so the session has ended
        await until(lambda: service.status().detail["kv_blocks"] == 0)


async def test_what_an_earlier_version_kept_beside_sessions_is_removed(
    nats_url: str, nats_bus: NatsBus, pair: Pair
) -> None:
    old, new = chain(2000), chain(3)
    await write(pair.sessions, old, part_bytes=10)
    await pair.sessions.hset("ryz:kv:meta", "x", "y")
    await write(pair.kv, new)
    sessions = SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    tenant = new_tenant()
    async with running(nats_url, pair.sessions_server.url, kv_redis_url=pair.kv_server.url):
        await sessions.commit([record(tenant)])
        async with asyncio.timeout(PATIENCE_S):
            while "ryz:kv" in await names_in(pair.sessions):  # noqa: ASYNC110 (polls another process)
                await asyncio.sleep(0.02)
        assert (await sessions.get(tenant, "s")).version == 1
        assert await pair.kv.exists(*map(data_key, new)) == 3


async def test_nothing_is_removed_where_both_addresses_are_one_server(pair: Pair) -> None:
    names = chain(3)
    await write(pair.kv, names)
    port = pair.kv_server.port
    links = [
        RedisLink(f"redis://{host}:{port}/0", timeout_s=2, max_connections=1, name="x", reason="x")
        for host in ("127.0.0.1", "localhost")
    ]
    assert await remove_leftovers(*links) == 0
    assert await pair.kv.exists(*map(data_key, names)) == 3
    for link in links:
        await link.close()
