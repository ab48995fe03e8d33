"""Whole answers by one request on the bus: the answers, limits and errors of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from services.gateway.transports.bus.complete_calls import translate_call
from shared import subjects
from shared.bus import Message
from shared.errors import InvalidRequest
from shared.messages import AccountRules, BusUserTerms, KeyRecord
from shared.subjects import OutsideService
from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "secret-key-of-ada"
BEARER = {"Authorization": f"Bearer {KEY}"}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
OUTSIDE = OutsideService("acme", "billing")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys=f"{KEY}:ada", max_concurrent=4) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(gateway: Gateway) -> AsyncIterator[MemoryBus]:
    made = MemoryBus(gateway.broker)
    yield made
    await made.close()


async def ask(
    bus: MemoryBus, body: object, *, model: str = "demo", headers: dict[str, str] = BEARER,
    caller: OutsideService | None = None,
) -> tuple[int, Any, dict[str, str]]:  # fmt: skip
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    subject = subjects.complete(model, caller)
    prefix = f"_INBOX.{caller.user}" if caller else "_INBOX"
    waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def take(message: Message) -> None:
        if not waiting.done():
            waiting.set_result(message)

    reply = bus.new_inbox().replace("_INBOX", prefix, 1)
    subscription = await bus.subscribe(reply, take)
    await bus.publish(subject, data, reply=reply, headers=headers)
    answer = await asyncio.wait_for(waiting, PATIENCE_S)
    await subscription.unsubscribe()
    found = dict(answer.headers)
    return int(found["Ryz-Status"]), json.loads(answer.data), found


async def test_chat_and_text_in_one_message(bus: MemoryBus) -> None:
    status, chat, headers = await ask(bus, HELLO)
    assert (status, chat["object"]) == (200, "chat.completion")
    assert chat["choices"][0]["message"]["content"] == "".join(WORDS)
    assert headers["X-Session-Id"]
    status, text, _ = await ask(bus, {"prompt": "Once"})
    assert (status, text["object"]) == (200, "text_completion")
    assert text["choices"][0]["text"] == "".join(WORDS)


async def test_the_key_or_the_subject_names_the_tenant(gateway: Gateway, bus: MemoryBus) -> None:
    await ask(bus, HELLO)
    assert gateway.fleet.requests[-1].tenant == "ada"
    status, answer, headers = await ask(bus, HELLO, headers={})
    assert (status, answer["error"]["code"]) == (401, "missing_api_key")
    assert headers["Nats-Service-Error-Code"] == "401"
    assert headers["Nats-Service-Error"].startswith("missing_api_key: ")
    status, _, _ = await ask(bus, HELLO, headers={"Authorization": "Bearer wrong"}, caller=OUTSIDE)
    assert (status, gateway.fleet.requests[-1].tenant) == (200, "acme")


async def test_model_names_are_escaped_in_the_subject(bus: MemoryBus) -> None:
    status, answer, _ = await ask(bus, HELLO, model="fails-overloaded")
    assert (status, answer["error"]["code"]) == (503, "overloaded")
    status, answer, _ = await ask(bus, HELLO, model="acme/no.such")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "acme/no.such" in answer["error"]["message"]
    for name in ("demo", "acme/llama-3.1", "Grüße=2F", "=", "=ZZ"):
        assert subjects.name_in(subjects.token(name)) == name


async def test_the_time_limit_of_the_caller_ends_the_generation(gateway: Gateway, bus: MemoryBus) -> None:
    gateway.fleet.requests.clear()
    status, answer, _ = await ask(bus, HELLO, model="slow", headers=BEARER | {"Ryz-Timeout-Ms": "150"})
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
    await gateway.wait_cancelled()
    await gateway.wait_idle()
    for wrong in ("0", "soon", "-1", "1" * 40):
        status, answer, _ = await ask(bus, HELLO, headers=BEARER | {"Ryz-Timeout-Ms": wrong})
        assert (status, answer["error"]["param"]) == (400, "Ryz-Timeout-Ms")


@pytest.mark.parametrize(
    ("headers", "fields"),
    [({"Ryz-Timeout-Ms": "600"}, {}), ({"X-Request-Timeout": "0.6"}, {}), ({}, {"timeout": 0.6})],
)
async def test_a_time_limit_may_be_longer_than_the_default(
    headers: dict[str, str], fields: dict[str, float]
) -> None:
    async with running_gateway(default_timeout_s=0.1) as running:
        bus = MemoryBus(running.broker)
        began_s = asyncio.get_running_loop().time()
        status, answer, _ = await ask(bus, HELLO | fields, model="slow", headers=headers)
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        assert asyncio.get_running_loop().time() - began_s > 0.55
        await running.wait_idle()
        await bus.close()


async def test_a_header_in_two_spellings_is_refused(bus: MemoryBus) -> None:
    twice = BEARER | {"X-Session-Id": "tea", "x-session-id": "milk"}
    status, answer, _ = await ask(bus, HELLO, headers=twice)
    assert (status, answer["error"]["param"]) == (400, "x-session-id")


async def test_an_answer_that_fits_into_no_message_says_so(gateway: Gateway, bus: MemoryBus) -> None:
    status, answer, _ = await ask(bus, HELLO, model="long")
    assert (status, answer["error"]["code"]) == (413, "request_too_large")
    assert "max_tokens" in answer["error"]["message"]
    await gateway.wait_idle()


async def test_a_service_outside_does_not_take_all_slots(gateway: Gateway, bus: MemoryBus) -> None:
    """Its share of four places is two; the refusal is counted."""
    assert (await ask(bus, HELLO))[0] == 200  # the model counts as known

    def refused() -> float:
        labels = {"model": "demo", "tenant": OUTSIDE.tenant, "priority": "normal", "outcome": "refused"}
        return gateway.metric("ryz_slo_requests_total", **labels)

    before = refused()
    asks = [
        asyncio.create_task(ask(bus, HELLO, model="slow", caller=OUTSIDE, headers={"Ryz-Timeout-Ms": "600"}))
        for _ in range(2)
    ]
    await until(lambda: gateway.running == 2)
    status, answer, _ = await ask(bus, HELLO, caller=OUTSIDE)
    assert (status, answer["error"]["code"]) == (429, "rate_limited")
    assert refused() == before + 1
    assert (await ask(bus, HELLO))[0] == 200
    assert [status for status, _, _ in await asyncio.gather(*asks)] == [504, 504]
    await gateway.wait_idle()


async def test_no_answer_goes_into_an_inbox_of_another_user(gateway: Gateway, bus: MemoryBus) -> None:
    gateway.fleet.requests.clear()
    data = json.dumps(HELLO).encode()
    for reply in ("", "_INBOX.gateway.x", "ryz.v1.cancel"):
        await bus.publish(subjects.complete("demo", OUTSIDE), data, reply=reply)
    await ask(bus, HELLO)
    assert len(gateway.fleet.requests) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"\xc1", None),
        (b"[1]", None),
        (b"[" * 100_000, None),
        ({}, "messages"),
        (HELLO | {"prompt": "x"}, "messages"),
        (HELLO | {"stream": True}, "stream"),
        (HELLO | {"model": "other"}, "model"),
    ],
)
async def test_bad_messages_are_answered(bus: MemoryBus, body: object, param: str | None) -> None:
    status, answer, _ = await ask(bus, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert answer["error"]["param"] == param
    with pytest.raises(InvalidRequest):
        translate_call(
            Message(subjects.complete("demo"), body if isinstance(body, bytes) else json.dumps(body).encode())
        )


async def test_a_bus_user_is_refused_once_it_is_revoked_or_suspended(
    gateway: Gateway, bus: MemoryBus
) -> None:
    user = KeyRecord(
        key_id="0123456789ab",
        tenant=OUTSIDE.tenant,
        digest=bytes(32),
        bus_user=BusUserTerms(user=OUTSIDE.user, password_hash="$2a$05$" + "a" * 53),
    )
    assert (await ask(bus, HELLO, headers={}, caller=OUTSIDE))[0] == 200, "no user has a record"
    await gateway.fleet.accounts.put(AccountRules(bus_users_listed=True))
    await gateway.fleet.accounts.put(user)
    try:
        assert (await ask(bus, HELLO, headers={}, caller=OUTSIDE))[0] == 200
        assert user.bus_user is not None
        await gateway.fleet.accounts.put(replace(user, bus_user=replace(user.bus_user, suspended=True)))
        status, answer, _ = await ask(bus, HELLO, headers={}, caller=OUTSIDE)
        assert (status, "is suspended" in answer["error"]["message"]) == (400, True)
        await gateway.fleet.accounts.remove(user.name)
        status, answer, _ = await ask(bus, HELLO, headers={}, caller=OUTSIDE)
        assert (status, "there is no bus user billing" in answer["error"]["message"]) == (400, True)
    finally:
        await gateway.fleet.accounts.put(AccountRules())
