"""The endpoint of calls on the bus: replies, error replies, bad messages, and calls without a reply."""

import asyncio
from collections.abc import Awaitable

import pytest

from shared.bus.api import Message, RequestTimedOut
from shared.bus.endpoint import Endpoint, call
from shared.codec import encode
from shared.errors import InvalidRequest, SessionNotFound
from shared.flow.backoff import Backoff, backoff_s
from shared.messages import SessionDelete, SessionDeleted, SessionGet
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until

SUBJECT = "test.delete"
QUERY = SessionDelete(tenant="t", session_id="s")


class Deleter:
    """Answers delete calls, and records reported errors."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.bad = list[str]()
        self.endpoint = Endpoint(bus, lambda _, error: self.bad.append(error.message))

    async def delete(self, query: SessionDelete, _: Message) -> SessionDeleted | None:
        if query.session_id == "missing":
            raise SessionNotFound("no session 'missing'", session_id="missing")
        return None if query.session_id == "silent" else SessionDeleted(session_id=query.session_id)

    def check(self, query: SessionDelete, _: Message) -> None:
        if query.tenant == "other":
            raise InvalidRequest("tenant: not that one", param="tenant")


async def test_a_call_gets_the_reply_or_the_error(memory_bus: MemoryBus) -> None:
    deleter = Deleter(memory_bus)
    await memory_bus.subscribe(SUBJECT, deleter.endpoint.handler(SessionDelete, deleter.delete))
    done = await call(memory_bus, SUBJECT, QUERY, SessionDeleted, timeout_s=PATIENCE_S)
    assert done == SessionDeleted(session_id="s")
    missing = SessionDelete(tenant="t", session_id="missing")
    with pytest.raises(SessionNotFound, match="no session 'missing'") as caught:
        await call(memory_bus, SUBJECT, missing, SessionDeleted, timeout_s=PATIENCE_S)
    assert caught.value.data == {"session_id": "missing"}
    silent = SessionDelete(tenant="t", session_id="silent")
    with pytest.raises(RequestTimedOut):
        await call(memory_bus, SUBJECT, silent, SessionDeleted, timeout_s=0.05)
    assert deleter.bad == []


async def test_a_bad_message_is_reported_and_answered(memory_bus: MemoryBus) -> None:
    deleter = Deleter(memory_bus)
    handler = deleter.endpoint.handler(SessionDelete, deleter.delete, check=deleter.check)
    await memory_bus.subscribe(SUBJECT, handler)
    with pytest.raises(InvalidRequest, match="session_id"):
        await call(memory_bus, SUBJECT, SessionDeleted(session_id=""), SessionDeleted, timeout_s=PATIENCE_S)
    with pytest.raises(InvalidRequest, match="not that one"):
        await call(
            memory_bus,
            SUBJECT,
            SessionDelete(tenant="other", session_id="s"),
            SessionDeleted,
            timeout_s=PATIENCE_S,
        )
    await memory_bus.publish(SUBJECT, b"\xc1")  # without a reply subject
    await until(lambda: len(deleter.bad) >= 3)
    assert len(deleter.bad) == 3
    assert memory_bus.stats.handler_errors == 0


async def test_on_subjects_of_many_readers_a_bad_message_is_reported_alone(memory_bus: MemoryBus) -> None:
    deleter = Deleter(memory_bus)
    handler = deleter.endpoint.handler(SessionDelete, deleter.delete, answers_bad=False)
    await memory_bus.subscribe(SUBJECT, handler)
    with pytest.raises(RequestTimedOut):
        await memory_bus.request(SUBJECT, b"\xc1", timeout_s=0.05)
    assert len(deleter.bad) == 1


async def test_a_handler_returns_the_error_that_it_answered(memory_bus: MemoryBus) -> None:
    deleter = Deleter(memory_bus)
    respond = deleter.endpoint.handler(SessionDelete, deleter.delete)
    assert await respond(Message(SUBJECT, encode(QUERY))) is None
    assert isinstance(await respond(Message(SUBJECT, b"")), InvalidRequest)
    error = await respond(Message(SUBJECT, encode(SessionGet(tenant="t", session_id="missing"))))
    assert isinstance(error, SessionNotFound)


async def test_a_listener_takes_news_in_order_and_reports_and_answers_bad_ones(memory_bus: MemoryBus) -> None:
    deleter, taken = Deleter(memory_bus), list[str]()

    def take(news: SessionDelete, _: Message) -> Awaitable[None] | None:
        if news.session_id != "slow":
            taken.append(news.session_id)
            return None

        async def later() -> None:
            await asyncio.sleep(0.01)
            taken.append("slow")

        return later()

    listen = deleter.endpoint.listener(SessionDelete, take, check=deleter.check)
    await memory_bus.subscribe(SUBJECT, listen)
    for name in ("a", "slow", "b"):
        await memory_bus.publish(SUBJECT, encode(SessionDelete(tenant="t", session_id=name)))
    with pytest.raises(InvalidRequest, match="not that one"):
        await call(
            memory_bus,
            SUBJECT,
            SessionDelete(tenant="other", session_id="s"),
            SessionDeleted,
            timeout_s=PATIENCE_S,
        )
    await memory_bus.publish(SUBJECT, b"\xc1")  # without a reply subject
    await until(lambda: len(taken) + len(deleter.bad) >= 5)
    assert (taken, len(deleter.bad)) == (["a", "slow", "b"], 2)
    assert memory_bus.stats.handler_errors == 0


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    assert [backoff_s(failures, 0.1, 0.5) for failures in (0, 1, 2, 3)] == [0.1, 0.2, 0.4, 0.5]
    assert backoff_s(10**9, 0.1, 0.5) == 0.5
    backoff = Backoff(first_s=0.1, longest_s=0.2)
    first, second = backoff.next_s(), backoff.next_s()
    assert 0.05 <= first <= 0.1 <= second <= 0.2
    backoff.reset()
    assert backoff.next_s() <= 0.1
