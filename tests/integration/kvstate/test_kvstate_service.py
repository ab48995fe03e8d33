"""The KV state service on a real broker and a real Redis, and its answers while Redis is unavailable."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import Raw
from msgspec.structs import replace

from services.kvstate.sessions.calls import FoundRecord
from shared import subjects
from shared.bus import Bus, NoResponders
from shared.bus.nats import NatsBus
from shared.codec import decode, decode_reply, encode
from shared.errors import InvalidRequest, SessionNotFound, Unavailable
from shared.lifecycle import Service
from shared.messages import (
    ChatMessage,
    ServiceStatus,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionFound,
    SessionGet,
    SessionList,
    SessionPage,
    StatusQuery,
    Wire,
)
from shared.messages.sessions import MAX_SESSION_MESSAGES
from tests.kits.kvstate.service import new_tenant, record, running
from tests.kits.programs.launch import async_program
from tests.kits.servers import RedisServer
from tests.kits.waiting import PATIENCE_S, until

CALLS = {
    "get": subjects.SESSION_GET,
    "commit": subjects.SESSION_COMMIT,
    "list": subjects.SESSION_LIST,
    "delete": subjects.SESSION_DELETE,
    "describe": subjects.SESSION_DESCRIBE,
    "pin": subjects.SESSION_PIN,
    "find": subjects.BLOCKS_FIND,
    "commit_blocks": subjects.BLOCKS_COMMIT,
}


@pytest.fixture
async def kvstate(nats_url: str, redis_url: str) -> AsyncIterator[Service]:
    async with running(nats_url, redis_url) as service:
        yield service


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


R = TypeVar("R", bound=Wire)


async def ask(bus: Bus, subject: str, message: Wire, kind: type[R]) -> R:
    reply = await bus.request(subject, encode(message), timeout_s=PATIENCE_S)
    return decode_reply(reply.data, kind)


def ready(service: Service) -> bool:
    return service.is_ready


async def test_a_session_is_committed_found_listed_and_deleted(kvstate: Service, nats_bus: NatsBus) -> None:
    tenant = new_tenant()
    batch = SessionCommit(records=[record(tenant, f"s{i}") for i in range(3)])
    assert await ask(nats_bus, subjects.SESSION_COMMIT, batch, SessionCommitted) == SessionCommitted()
    query = SessionGet(tenant=tenant, session_id="s1")
    assert (await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)).record == batch.records[1]
    seen: list[str] = []
    cursor = ""
    while len(seen) < 10:
        listing = SessionList(tenant=tenant, limit=2, cursor=cursor)
        page = await ask(nats_bus, subjects.SESSION_LIST, listing, SessionPage)
        seen += [summary.session_id for summary in page.sessions]
        if not (cursor := page.cursor):
            break
    assert sorted(seen) == ["s0", "s1", "s2"]
    removal = SessionDelete(tenant=tenant, session_id="s1")
    assert (await ask(nats_bus, subjects.SESSION_DELETE, removal, SessionDeleted)).session_id == "s1"
    with pytest.raises(SessionNotFound, match="s1") as caught:
        await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)
    assert caught.value.data["deleted"] is True
    assert caught.value.data["deleted_ms"] > 0
    with pytest.raises(SessionNotFound):
        await ask(nats_bus, subjects.SESSION_DELETE, removal, SessionDeleted)


async def test_another_tenants_session_does_not_exist(kvstate: Service, nats_bus: NatsBus) -> None:
    tenant = new_tenant()
    commit = SessionCommit(records=[record(tenant)])
    await ask(nats_bus, subjects.SESSION_COMMIT, commit, SessionCommitted)
    with pytest.raises(SessionNotFound):
        await ask(nats_bus, subjects.SESSION_GET, SessionGet(tenant="other", session_id="s"), SessionFound)


async def test_stale_and_too_large_records_are_reported(
    nats_url: str, redis_url: str, nats_bus: NatsBus
) -> None:
    tenant = new_tenant()
    async with running(nats_url, redis_url, session_max_bytes=2000):
        first = SessionCommit(records=[record(tenant, "a", 2)])
        await ask(nats_bus, subjects.SESSION_COMMIT, first, SessionCommitted)
        records = [record(tenant, "a", 1), record(tenant, "b", text="x" * 2000), record(tenant, "c")]
        answer = await ask(
            nats_bus, subjects.SESSION_COMMIT, SessionCommit(records=records), SessionCommitted
        )
        assert answer == SessionCommitted(stale=[0], too_large=[1])
        listing = await ask(nats_bus, subjects.SESSION_LIST, SessionList(tenant=tenant), SessionPage)
        assert {(s.session_id, s.version) for s in listing.sessions} == {("a", 2), ("c", 1)}


async def test_a_record_with_too_many_messages_is_too_large(kvstate: Service, nats_bus: NatsBus) -> None:
    tenant = new_tenant()
    sizes = {"full": MAX_SESSION_MESSAGES, "over": MAX_SESSION_MESSAGES + 1}
    records = [
        replace(record(tenant, name), messages=[ChatMessage(role="user", content="")] * size)
        for name, size in sizes.items()
    ]
    answer = await ask(nats_bus, subjects.SESSION_COMMIT, SessionCommit(records=records), SessionCommitted)
    assert answer == SessionCommitted(too_large=[1])


@pytest.mark.parametrize("name", CALLS)
async def test_bad_messages_are_answered_and_nothing_dies(
    kvstate: Service, nats_bus: NatsBus, name: str
) -> None:
    subject = CALLS[name]
    for data in (b"", b"\xc1", b"\xff" * 100, b"\x93\x01\x02", encode(StatusQuery()), b"\x81\xa6tenant\x07"):
        reply = await nats_bus.request(subject, data, timeout_s=PATIENCE_S)
        with pytest.raises(InvalidRequest):
            decode_reply(reply.data, SessionFound)
    await nats_bus.publish(subject, b"\xc1")  # no reply is requested
    tenant = new_tenant()
    with pytest.raises(SessionNotFound):
        await ask(nats_bus, subjects.SESSION_GET, SessionGet(tenant=tenant, session_id="s"), SessionFound)
    labels = {"call": name, "outcome": "invalid_request"}
    await until(lambda: (kvstate.registry.get_sample_value("ryz_kvstate_requests_total", labels) or 0) >= 7)


async def test_a_foreign_cursor_names_the_field(kvstate: Service, nats_bus: NatsBus) -> None:
    listing = SessionList(tenant=new_tenant(), cursor="nonsense")
    with pytest.raises(InvalidRequest) as caught:
        await ask(nats_bus, subjects.SESSION_LIST, listing, SessionPage)
    assert caught.value.data["param"] == "cursor"


async def test_redis_away_is_reported_at_once_and_passes(
    nats_url: str, nats_bus: NatsBus, own_redis: RedisServer
) -> None:
    tenant = new_tenant()
    query, commit = SessionGet(tenant=tenant, session_id="s"), SessionCommit(records=[record(tenant)])
    limit_s = 4.0  # for an answer of Redis
    async with running(nats_url, own_redis.url, redis_timeout_s=limit_s) as service:
        await ask(nats_bus, subjects.SESSION_COMMIT, commit, SessionCommitted)
        assert ready(service)
        own_redis.stop(kill=True)
        started = time.monotonic()
        for subject, message in ((subjects.SESSION_GET, query), (subjects.SESSION_COMMIT, commit)) * 10:
            with pytest.raises(Unavailable) as caught:
                await ask(nats_bus, subject, message, SessionFound)
            assert caught.value.data["reason"] == "session_store"
        assert time.monotonic() - started < 5 * limit_s, "20 calls waited for it"
        assert not ready(service)
        own_redis.start()
        await until(lambda: service.is_ready)
        # the restarted store has neither data nor scripts
        with pytest.raises(SessionNotFound):
            await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)
        await ask(nats_bus, subjects.SESSION_COMMIT, commit, SessionCommitted)
        assert (await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)).record == commit.records[0]


async def test_a_redis_that_hangs_does_not_hang_callers(
    nats_url: str, nats_bus: NatsBus, own_redis: RedisServer
) -> None:
    query = SessionGet(tenant=new_tenant(), session_id="s")
    async with running(nats_url, own_redis.url, redis_timeout_s=0.3) as service:
        assert own_redis.process is not None
        os.kill(own_redis.process.pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            calls = (ask(nats_bus, subjects.SESSION_GET, query, SessionFound) for _ in range(100))
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - started < 15, "one after another would take 30 s"
            assert {type(answer) for answer in answers} == {Unavailable}
            await until(lambda: not service.is_ready)
        finally:
            os.kill(own_redis.process.pid, signal.SIGCONT)
        await until(lambda: service.is_ready)
        with pytest.raises(SessionNotFound):
            await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)


async def test_without_redis_it_starts_and_is_not_ready(nats_url: str, nats_bus: NatsBus) -> None:
    async with running(nats_url, "redis://127.0.0.1:9/0") as service:
        assert (service.state, service.is_ready) == ("ready", False)
        assert service.readiness()["checks"] == {"broker": True, "session store": False}
        status = await ask(nats_bus, subjects.STATUS, StatusQuery(), ServiceStatus)
        assert status.detail["store"] == "away"
        with pytest.raises(Unavailable):
            await ask(nats_bus, subjects.SESSION_GET, SessionGet(tenant="t", session_id="s"), SessionFound)


async def test_the_process_starts_answers_and_stops(nats_url: str, redis_url: str, nats_bus: NatsBus) -> None:
    env = {"RYZ_NATS_URL": nats_url, "RYZ_REDIS_URL": redis_url, "PATH": os.environ["PATH"]}
    async with async_program("services.kvstate", env=env) as process:
        query = SessionGet(tenant=new_tenant(), session_id="s")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await ask(nats_bus, subjects.SESSION_GET, query, SessionFound)
                except NoResponders:
                    await asyncio.sleep(0.05)
                except SessionNotFound:
                    break
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0
        assert b"Traceback" not in log


def test_an_answer_around_stored_bytes_is_the_answer_encoded() -> None:
    found = SessionFound(record=record("t", version=7))
    reply = encode(FoundRecord(record=Raw(encode(found.record))))
    assert reply == encode(found)
    assert decode(reply, SessionFound) == found
