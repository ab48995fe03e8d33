"""A tenant is erased on a real broker and a real Redis: sessions, responses and KV blocks of it alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from shared import subjects
from shared.bus.endpoint import Endpoint, call
from shared.bus.nats import NatsBus
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import ResponseNotFound, SessionNotFound
from shared.lifecycle import Service
from shared.messages import (
    BlocksCommit,
    BlocksCommitted,
    BlocksFind,
    BlocksFound,
    ResponseRecord,
    SessionCommit,
    SessionCommitted,
    SessionFound,
    SessionGet,
    SessionGone,
    SessionList,
    SessionPage,
    TenantErase,
    TenantErased,
)
from tests.kits.kvstate.service import chain, held, own_redis, record, running, value, write
from tests.kits.waiting import PATIENCE_S, until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tuple[str, aioredis.Redis]]:
    async with own_redis(tmp_path) as (server, client):
        yield server.url, client


@pytest.fixture
async def kvstate(nats_url: str, store: tuple[str, aioredis.Redis]) -> AsyncIterator[Service]:
    async with running(nats_url, store[0]) as service:
        yield service


async def fill(bus: NatsBus, redis: aioredis.Redis, tenant: str, count: int) -> list[bytes]:
    """Stores that many sessions with four blocks each, and as many responses; returns all blocks."""
    responses = ResponsesClient(bus, owner="a", timeout_s=PATIENCE_S, lease_ms=15_000)
    all_names: list[bytes] = []
    for number in range(count):
        names = chain(4)
        await write(redis, names)
        all_names += names
        commit = SessionCommit(records=[record(tenant, f"s{number}")])
        await call(bus, subjects.SESSION_COMMIT, commit, SessionCommitted, timeout_s=PATIENCE_S)
        blocks = BlocksCommit(group="g1", held=[held(tenant, f"s{number}", names)])
        done = await call(bus, subjects.BLOCKS_COMMIT, blocks, BlocksCommitted, timeout_s=PATIENCE_S)
        assert done.stored == 4
        response = ResponseRecord(response_id=f"r{number}", tenant=tenant, model="m", input_items="[]")
        assert await responses.put(response, is_new=True)
    return all_names


async def erase(bus: NatsBus, tenant: str, for_ms: int = 5000) -> TenantErased:
    asked = TenantErase(tenant=tenant, for_ms=for_ms)
    return await call(bus, subjects.TENANT_ERASE, asked, TenantErased, timeout_s=PATIENCE_S)


async def found(bus: NatsBus, names: list[bytes]) -> int:
    asked = BlocksFind(names=b"".join(names[:4]), lease_ms=0)
    return (await call(bus, subjects.BLOCKS_FIND, asked, BlocksFound, timeout_s=PATIENCE_S)).count


async def test_a_tenant_is_erased_and_another_one_is_not(
    kvstate: Service, nats_bus: NatsBus, store: tuple[str, aioredis.Redis]
) -> None:
    redis = store[1]
    gone: list[SessionGone] = []
    listener = Endpoint(nats_bus).listener(SessionGone, lambda one, _: gone.append(one))
    heard = await nats_bus.subscribe(subjects.SESSION_GONE, listener)
    await nats_bus.flush()
    theirs, others = await fill(nats_bus, redis, "acme", 70), await fill(nats_bus, redis, "other", 3)
    assert await found(nats_bus, theirs) == 4

    done = await erase(nats_bus, "acme")
    assert (done.sessions, done.responses, done.left) == (70, 70, False)
    page = await call(
        nats_bus, subjects.SESSION_LIST, SessionList(tenant="acme"), SessionPage, timeout_s=PATIENCE_S
    )
    assert page.sessions == []
    with pytest.raises(SessionNotFound):
        await call(
            nats_bus,
            subjects.SESSION_GET,
            SessionGet(tenant="acme", session_id="s1"),
            SessionFound,
            timeout_s=PATIENCE_S,
        )
    with pytest.raises(ResponseNotFound):
        await ResponsesClient(nats_bus, owner="a", timeout_s=PATIENCE_S, lease_ms=1000).get("acme", "r1")
    assert await found(nats_bus, theirs) == 0
    assert value(kvstate, "blocks_evicted_total", reason="session_deleted") + value(
        kvstate, "blocks_evicted_total", reason="tenant_erased"
    ) == len(theirs)
    await until(lambda: len(gone) == 70)
    stale = await call(
        nats_bus,
        subjects.SESSION_COMMIT,
        SessionCommit(records=[record("acme", "s1", version=2)]),
        SessionCommitted,
        timeout_s=PATIENCE_S,
    )
    assert stale.deleted == [0], "a leader that still has the session cannot store it again"
    left = [key.decode() async for key in redis.scan_iter("*acme*")]
    assert not [key for key in left if ":gone" not in key and ":sessions-deleted" not in key], left

    assert await found(nats_bus, others) == 4
    listed = await call(
        nats_bus, subjects.SESSION_LIST, SessionList(tenant="other"), SessionPage, timeout_s=PATIENCE_S
    )
    assert len(listed.sessions) == 3
    assert await erase(nats_bus, "acme") == TenantErased()
    await heard.unsubscribe()


async def test_an_erasure_goes_on_where_the_one_before_ended(
    kvstate: Service, nats_bus: NatsBus, store: tuple[str, aioredis.Redis]
) -> None:
    await fill(nats_bus, store[1], "acme", 5)
    nothing = await erase(nats_bus, "acme", for_ms=0)
    assert (nothing.sessions, nothing.left) == (0, True)
    assert (await erase(nats_bus, "acme")).sessions == 5


async def test_blocks_that_a_group_reads_are_left_until_it_has_them(
    kvstate: Service, nats_bus: NatsBus, store: tuple[str, aioredis.Redis]
) -> None:
    names = chain(4)
    await write(store[1], names)
    commit = BlocksCommit(group="g1", held=[held("acme", "", names)])
    await call(nats_bus, subjects.BLOCKS_COMMIT, commit, BlocksCommitted, timeout_s=PATIENCE_S)
    find = BlocksFind(names=b"".join(names), lease_ms=1500)
    assert (await call(nats_bus, subjects.BLOCKS_FIND, find, BlocksFound, timeout_s=PATIENCE_S)).count == 4
    assert (await erase(nats_bus, "acme", for_ms=0)).left

    async def erased() -> bool:
        return not (await erase(nats_bus, "acme", for_ms=100)).left

    await until(erased)
    assert await found(nats_bus, names) == 0
