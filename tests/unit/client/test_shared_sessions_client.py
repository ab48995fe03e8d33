"""The typed session calls: what they send, what they return, what they raise."""

import pytest

from shared import subjects
from shared.bus import Message
from shared.client import SessionsClient
from shared.codec import decode, encode
from shared.errors import Internal, SessionNotFound, Unavailable
from shared.messages import (
    ErrorReply,
    SessionCommit,
    SessionCommitted,
    SessionDelete,
    SessionDeleted,
    SessionFound,
    SessionGet,
    SessionList,
    SessionPage,
    SessionRecord,
    Wire,
)
from tests.kits.memory_bus import MemoryBus

RECORD = SessionRecord(session_id="s1", tenant="acme", model="demo", version=1)


async def answer(bus: MemoryBus, subject: str, kind: type[Wire], reply: Wire | bytes) -> list[Wire]:
    got: list[Wire] = []

    async def handle(message: Message) -> None:
        got.append(decode(message.data, kind))
        await bus.publish(message.reply, reply if isinstance(reply, bytes) else encode(reply))

    await bus.subscribe(subject, handle, queue=subjects.KVSTATE_QUEUE)
    return got


async def test_each_call_sends_its_message_and_returns_its_answer(memory_bus: MemoryBus) -> None:
    client = SessionsClient(memory_bus)
    got = await answer(memory_bus, subjects.SESSION_GET, SessionGet, SessionFound(record=RECORD))
    assert await client.get("acme", "s1") == RECORD
    assert got == [SessionGet(tenant="acme", session_id="s1")]
    got = await answer(memory_bus, subjects.SESSION_COMMIT, SessionCommit, SessionCommitted(stale=[0]))
    assert (await client.commit([RECORD])).stale == [0]
    assert got == [SessionCommit(records=[RECORD])]
    got = await answer(memory_bus, subjects.SESSION_LIST, SessionList, SessionPage(sessions=[], cursor="c"))
    assert (await client.list("acme", limit=5, cursor="b")).cursor == "c"
    assert got == [SessionList(tenant="acme", limit=5, cursor="b")]
    got = await answer(memory_bus, subjects.SESSION_DELETE, SessionDelete, SessionDeleted(session_id="s1"))
    await client.delete("acme", "s1")
    assert got == [SessionDelete(tenant="acme", session_id="s1")]


async def test_errors_come_as_what_they_are(memory_bus: MemoryBus) -> None:
    client = SessionsClient(memory_bus)
    with pytest.raises(Unavailable, match="no service listens"):
        await client.get("acme", "s1")
    error = ErrorReply(error="session_not_found", message="no session s1")
    await answer(memory_bus, subjects.SESSION_GET, SessionGet, error)
    with pytest.raises(SessionNotFound, match="no session s1"):
        await client.get("acme", "s1")
    await answer(memory_bus, subjects.SESSION_LIST, SessionList, b"\xc1")
    with pytest.raises(Internal, match="cannot be read"):
        await client.list("acme")


async def test_a_silent_service_is_waited_for_within_the_bound(memory_bus: MemoryBus) -> None:
    async def ignore(_: Message) -> None:
        return

    await memory_bus.subscribe(subjects.SESSION_GET, ignore)
    with pytest.raises(Unavailable, match=r"within 0\.02 s"):
        await SessionsClient(memory_bus).get("acme", "s1", timeout_s=0.02)
