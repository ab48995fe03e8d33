"""Calls from inside the process have the answers, limits and errors of HTTP, in every format."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from services.gateway.answering.direct_calls import DirectCall
from services.gateway.answering.formatted_answer import CallAnswer
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
KEY = "secret-key-of-ada"
HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}]}
BODIES: dict[str, dict[str, object]] = {
    CHAT: HELLO,
    "/v1/completions": {"prompt": "Hello"},
    "/v1/messages": HELLO | {"max_tokens": 9},
    "/v1/responses": {"input": "Hello", "seed": 1},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys=f"{KEY}:ada") as running:
        yield running


def body(model: str = "demo", **fields: object) -> bytes:
    return json.dumps(HELLO | {"model": model} | fields).encode()


def masked(answer: dict[str, object]) -> dict[str, object]:
    """An answer without ids and times."""
    made = {"id", "created", "created_at", "completed_at", "session_id", "output"}
    return {name: value for name, value in answer.items() if name not in made}


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_is_that_of_http(gateway: Gateway, path: str) -> None:
    bearer, asked = f"Bearer {KEY}", BODIES[path] | {"model": "demo"}
    async with httpx.AsyncClient() as client:
        outside = await client.post(gateway.url + path, json=asked, headers={"Authorization": bearer})
    form, headers = gateway.direct.formats[path], {b"authorization": bearer.encode()}
    inside = await gateway.direct.run_whole(form, json.dumps(asked).encode(), headers)
    assert inside.status == outside.status_code == 200
    assert masked(json.loads(inside.body)) == masked(outside.json())
    assert {b"x-ryz-group", b"x-request-id"} <= set(inside.headers)


async def test_the_tenant_is_that_of_the_transport_or_of_the_key(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()
    direct = gateway.direct
    form = direct.formats[CHAT]
    await direct.run_whole(form, body(), {}, tenant="night-work")
    assert gateway.fleet.requests[-1].tenant == "night-work"
    refused = await direct.run_whole(form, body(), {})
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (401, "missing_api_key")
    assert (await direct.run_whole(form, b"{", {}, tenant="ada")).status == 400


async def test_a_caller_that_leaves_before_the_answer_cancels_the_generation(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()
    form = gateway.direct.formats[CHAT]
    asking = asyncio.create_task(gateway.direct.run_whole(form, body("stuck"), {}, tenant="ada"))
    await gateway.fleet.wait_requests(1)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await gateway.wait_cancelled()
    await gateway.wait_idle()


async def put_texts(answer: CallAnswer, call: DirectCall) -> None:
    """Hands over the data of all events."""
    events = answer.events()
    await events.open(1.0)
    while not events.ended:
        texts = [data for _, some in await events.next_batch() for _, data in some]
        await call.carrier.put(texts, sum(map(len, texts)))


@pytest.mark.parametrize("path", ["/v1/responses", CHAT])
async def test_leaving_in_the_middle_cancels_the_generation(gateway: Gateway, path: str) -> None:
    gateway.fleet.requests.clear()
    asked = json.dumps(BODIES[path] | {"model": "slow", "stream": True}).encode()
    came = asyncio.Event()

    async def send(text: bytes) -> None:
        if b"word" in text:
            came.set()

    running = gateway.direct.run(gateway.direct.formats[path], asked, {}, put_texts, send, tenant="ada")
    asking = asyncio.create_task(running)
    await came.wait()
    asking.cancel()
    await asyncio.wait([asking])
    await gateway.wait_cancelled()
    await gateway.wait_idle()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    async with running_gateway(write_timeout_s=0.3) as gateway:
        reads = asyncio.Event()

        async def send(text: bytes) -> None:
            await reads.wait()

        form = gateway.direct.formats[CHAT]
        asking = asyncio.create_task(
            gateway.direct.run(form, body("flood", stream=True), {}, put_texts, send)
        )
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1)
        reads.set()
        call = await asking
        assert call.error is not None
        assert "not read" in call.error.message
        await gateway.wait_idle()
