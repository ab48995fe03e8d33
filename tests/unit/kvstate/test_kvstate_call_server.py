"""The order of session calls: calls that a turn waits for run at once, others take turns by tenant."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.call_server import AT_ONCE, MAX_WAITING, PER_TENANT, CallKind, CallServer
from services.kvstate.metrics import KVStateMetrics
from shared import subjects
from shared.client import SessionsClient
from shared.client.calls.session_admin import SessionAdmin
from shared.codec import encode
from shared.errors import RateLimited
from shared.messages import (
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionFound,
    SessionGet,
    SessionList,
    SessionPage,
    SessionRecord,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until

HELD_BACK_S = 2 * PATIENCE_S  # calls wait until the test lets them go, however slow the machine is


class Store:
    """Answers calls. Calls of the tenants in `held_back` wait for `go`."""

    def __init__(self) -> None:
        self.held_back = {"many"}
        self.deleted = list[tuple[str, str]]()
        self.go, self.running, self.most = asyncio.Event(), Counter[str](), Counter[str]()

    async def answer(self, tenant: str) -> None:
        self.running[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.running[tenant])
        if tenant in self.held_back:
            await self.go.wait()
        self.running[tenant] -= 1

    async def list(self, query: SessionList) -> SessionPage:
        await self.answer(query.tenant)
        return SessionPage(sessions=[])

    async def get(self, query: SessionGet) -> SessionFound:
        await self.answer(query.tenant)
        return SessionFound(record=record(query.tenant))

    async def delete(self, query: SessionDelete) -> SessionDeleted:
        self.deleted.append((query.tenant, query.session_id))
        return SessionDeleted(session_id=query.session_id)

    async def commit(self, commit: SessionCommit) -> SessionCommitted:
        await self.answer(commit.records[0].tenant)
        return SessionCommitted()


def record(tenant: str) -> SessionRecord:
    return SessionRecord(session_id="s", tenant=tenant, model="m", version=1)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def server(memory_bus: MemoryBus, store: Store) -> AsyncIterator[CallServer]:
    server = CallServer(memory_bus, KVStateMetrics(CollectorRegistry()), max_concurrent=32, max_pending=4096)
    await server.start(
        [
            CallKind("list", subjects.SESSION_LIST, SessionList, store.list),
            CallKind("get", subjects.SESSION_GET, SessionGet, store.get),
            CallKind("delete", subjects.SESSION_DELETE, SessionDelete, store.delete),
            CallKind("commit", subjects.SESSION_COMMIT, SessionCommit, store.commit),
        ]
    )
    yield server
    store.go.set()
    await server.stop()


@pytest.mark.usefixtures("server")
async def test_a_tenant_with_many_calls_holds_up_no_other_and_no_turn(
    memory_bus: MemoryBus, store: Store
) -> None:
    leader, admin = SessionsClient(memory_bus), SessionAdmin(memory_bus, timeout_s=HELD_BACK_S, gather_s=0.1)
    calls: list[asyncio.Future[Any]] = []
    for _ in range(MAX_WAITING // 2):
        calls += [asyncio.ensure_future(admin.page("many")), asyncio.ensure_future(admin.record("many", "s"))]
    await until(lambda: store.running["many"] == PER_TENANT)
    async with asyncio.timeout(PATIENCE_S):
        assert (await admin.page("few")).sessions == []
        assert await admin.record("few", "s") == record("few")
        # calls for turns of the same tenant are not held up either
        store.held_back.discard("many")
        try:
            assert await leader.get("many", "s") == record("many")
            assert await leader.commit([record("many")]) == SessionCommitted()
        finally:
            store.held_back.add("many")
    assert store.running["many"] == PER_TENANT < AT_ONCE
    store.go.set()
    await asyncio.gather(*calls)
    assert store.most["many"] == PER_TENANT + 1  # one call for a turn runs beside them


@pytest.mark.usefixtures("server")
async def test_beyond_its_bound_a_tenant_is_told_to_make_fewer_calls(
    memory_bus: MemoryBus, store: Store
) -> None:
    admin = SessionAdmin(memory_bus, timeout_s=HELD_BACK_S, gather_s=0.1)
    calls = [asyncio.create_task(admin.page("many")) for _ in range(PER_TENANT + MAX_WAITING)]
    await until(lambda: memory_bus.stats.received >= len(calls))
    with pytest.raises(RateLimited, match=f"has {MAX_WAITING} calls about sessions waiting") as caught:
        await admin.record("many", "s")
    assert (caught.value.data["reason"], caught.value.retry_after_s) == ("session_calls", 1.0)
    assert (await admin.page("few")).sessions == []
    with pytest.raises(RateLimited):
        await SessionsClient(memory_bus).delete("many", "s")
    await SessionsClient(memory_bus).delete("many", "s", undo=True)
    assert store.deleted == [("many", "s")]
    store.held_back.discard("many")
    try:
        assert await SessionsClient(memory_bus).get("many", "s") == record("many")
    finally:
        store.held_back.add("many")
    store.go.set()
    await asyncio.gather(*calls)


async def test_calls_that_were_taken_are_answered_before_the_end(
    memory_bus: MemoryBus, store: Store, server: CallServer
) -> None:
    admin = SessionAdmin(memory_bus, timeout_s=HELD_BACK_S, gather_s=0.1)
    calls = [asyncio.create_task(admin.page("many")) for _ in range(10)]
    await until(lambda: store.running["many"] == PER_TENANT)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    store.go.set()
    await asyncio.gather(stopping, *calls)


async def test_a_caller_that_names_no_tenant_waits_in_one_line_with_its_like(
    memory_bus: MemoryBus, store: Store, server: CallServer
) -> None:
    query = encode(SessionList(tenant="many"))
    calls = [
        asyncio.create_task(memory_bus.request(subjects.SESSION_LIST, query, timeout_s=HELD_BACK_S))
        for _ in range(10)
    ]
    await until(lambda: store.running["many"] == PER_TENANT)
    store.go.set()
    await asyncio.gather(*calls)
    assert store.most["many"] == PER_TENANT


async def test_calls_for_turns_that_wait_are_answered_before_the_end(
    memory_bus: MemoryBus, store: Store
) -> None:
    server = CallServer(memory_bus, KVStateMetrics(CollectorRegistry()), max_concurrent=1, max_pending=4096)
    await server.start([CallKind("get", subjects.SESSION_GET, SessionGet, store.get)])
    leader = SessionsClient(memory_bus, timeout_s=HELD_BACK_S)
    calls = [asyncio.create_task(leader.get("many", "s")) for _ in range(3)]
    await until(lambda: memory_bus.stats.received >= len(calls))
    stopping = asyncio.create_task(server.stop())
    await until(lambda: store.running["many"] == 1)
    assert not stopping.done()
    store.go.set()
    assert await asyncio.gather(*calls) == [record("many")] * 3
    await stopping
