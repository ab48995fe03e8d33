"""Calls of the gateway's routes from inside the process have the answers, limits and errors of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from services.gateway.inner.inner_calls import AnswerCut, InnerCalls
from tests.kits.gateway.gateway import WORDS, Gateway, eventually, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
KEY = "secret-key-of-ada"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys=f"{KEY}:ada") as running:
        yield running


def body(model: str = "demo", **fields: object) -> bytes:
    return json.dumps(HELLO | {"model": model} | fields).encode()


async def test_a_whole_answer_is_that_of_http(gateway: Gateway) -> None:
    bearer = f"Bearer {KEY}"
    async with httpx.AsyncClient() as client:
        asked = HELLO | {"model": "demo"}
        outside = await client.post(gateway.url + CHAT, json=asked, headers={"Authorization": bearer})
    async with gateway.inner.call(CHAT, body(), [(b"authorization", bearer.encode())]) as answer:
        inside = json.loads(await answer.read())
    assert answer.status == outside.status_code == 200
    assert set(inside) == set(outside.json())
    assert inside["choices"] == outside.json()["choices"]
    assert set(answer.headers) >= {b"x-session-id", b"x-ryz-group", b"x-request-id"}


async def test_events_come_one_by_one(gateway: Gateway) -> None:
    asked = body(stream=True, stream_options={"include_event_ids": True})
    async with gateway.inner.call(CHAT, asked, tenant="ada") as answer:
        events = [event async for event in answer.events()]
    assert answer.headers[b"content-type"].startswith(b"text/event-stream")
    assert events[-1].data == b"[DONE]"
    said = [json.loads(event.data)["choices"] for event in events[:-1]]
    assert "".join(choices[0]["delta"].get("content") or "" for choices in said if choices) == "".join(WORDS)
    ids = [event.event_id for event in events]
    assert all(ids)
    assert len(set(ids)) == len(ids)


async def test_the_tenant_is_that_of_the_door_or_of_the_key(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()
    async with gateway.inner.call(CHAT, body(), tenant="night-work") as answer:
        await answer.read()
    assert gateway.fleet.requests[-1].tenant == "night-work"
    async with gateway.inner.call(CHAT, body()) as answer:
        assert answer.status == 401
        assert json.loads(await answer.read())["error"]["code"] == "missing_api_key"
    async with gateway.inner.call(CHAT, b"{", tenant="ada") as answer:
        assert answer.status == 400
    async with gateway.inner.call("/v1/none", b"{}", tenant="ada") as answer:
        assert answer.status == 404


async def test_leaving_cancels_the_generation(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()
    async with gateway.inner.call(CHAT, body("slow", stream=True), tenant="ada") as answer:
        async for event in answer.events():
            if b"word" in event.data:
                break
    await gateway.wait_cancelled()
    await gateway.wait_idle()


async def test_a_caller_that_leaves_before_the_head_cancels_too(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()

    async def ask() -> None:
        async with gateway.inner.call(CHAT, body("stuck"), tenant="ada"):
            raise AssertionError("there is no answer")

    asking = asyncio.create_task(ask())
    await gateway.fleet.wait_requests(1)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await gateway.wait_cancelled()
    await gateway.wait_idle()


async def test_a_route_waits_for_its_reader(gateway: Gateway) -> None:
    """Twenty million characters: what is not read stays with the leader, or in the bounded stream."""
    gateway.fleet.requests.clear()
    async with gateway.inner.call(CHAT, body("flood", stream=True), tenant="ada") as answer:
        parts = answer.parts()
        await anext(parts)
        sizes = []
        for _ in range(20):
            await asyncio.sleep(0.02)
            sizes.append(len(await anext(parts)))
    assert max(sizes) <= 2 * 65_536
    await gateway.wait_cancelled()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    async with running_gateway(write_timeout_s=0.3) as gateway:
        async with gateway.inner.call(CHAT, body("flood", stream=True)) as answer:
            await eventually(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1)
            with pytest.raises(AnswerCut):
                _ = [event async for event in answer.events()]
        await gateway.wait_idle()


async def test_what_a_route_raises_is_raised_here() -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise LookupError("a fault of the route")

    with pytest.raises(LookupError):
        async with InnerCalls(broken).call("/"):
            pass

    async def silent(scope: object, receive: object, send: object) -> None:
        return

    with pytest.raises(AnswerCut):
        async with InnerCalls(silent).call("/"):
            pass
