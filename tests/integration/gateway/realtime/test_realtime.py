"""`/v1/realtime`: many requests on one WebSocket, with the answers, limits and errors of HTTP."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "secret-key-of-ada"
Message = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(realtime_requests_max=4, realtime_grace_s=0.3) as running:
        yield running


@asynccontextmanager
async def connected(gateway: Gateway, **options: Any) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime", **options) as socket:
        yield socket


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind} | fields))


async def receive(socket: ClientConnection) -> Message:
    async with asyncio.timeout(PATIENCE_S):
        message: Message = json.loads(await socket.recv())
    return message


def chat(model: str = "demo", **fields: Any) -> Message:
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}]} | fields


async def until(socket: ClientConnection, *kinds: str, of: str = "") -> list[Message]:
    """The messages up to the first of these kinds."""
    got = [await receive(socket)]
    while got[-1]["type"] not in kinds or (of and got[-1].get("id") != of):
        got.append(await receive(socket))
    return got


def text_of(messages: list[Message], request_id: str) -> str:
    choices = [
        message["data"]["choices"]
        for message in messages
        if message["type"] == "event" and message["id"] == request_id
    ]
    return "".join(choice[0]["delta"].get("content") or "" for choice in choices if choice)


async def test_requests_run_side_by_side(gateway: Gateway) -> None:
    async with connected(gateway) as socket:
        assert (await receive(socket))["type"] == "ready"
        await send(socket, "request", id="slow", body=chat("slow", stream=True))
        await send(socket, "request", id="quick", body=chat(stream=True))
        await send(socket, "request", id="whole", body=chat())
        messages = await until(socket, "done", of="quick")
        assert text_of(messages, "quick") == "".join(WORDS)
        assert {"slow", "quick"} <= {message["id"] for message in messages}
        if not any(message["type"] == "answer" for message in messages):
            messages += await until(socket, "answer")
        (whole,) = [message for message in messages if message["type"] == "answer"]
        assert whole["data"]["choices"][0]["message"]["content"] == "".join(WORDS)
        assert {"x-request-id", "x-session-id"} <= whole["headers"].keys()
        await send(socket, "cancel", id="slow")
        await until(socket, "cancelled", of="slow")
    await gateway.wait_idle()
    slow = next(request for request in gateway.fleet.requests if request.model == "slow")
    assert gateway.fleet.cancel_of(slow.request_id).is_set()


PATHS: list[tuple[str, Message]] = [
    ("/v1/completions", {"model": "demo", "prompt": "Hello", "stream": True}),
    ("/v1/messages", chat(stream=True, max_tokens=9)),
    ("/v1/responses", {"model": "demo", "input": "Hello", "stream": True, "store": False}),
]


@pytest.mark.parametrize(("path", "body"), PATHS, ids=[path for path, _ in PATHS])
async def test_each_api_is_there(gateway: Gateway, path: str, body: Message) -> None:
    async with connected(gateway) as socket:
        await receive(socket)
        await send(socket, "request", id="a", path=path, body=body)
        messages = await until(socket, "done")
        assert messages[0]["status"] == 200
        events = [message for message in messages if message["type"] == "event"]
        assert "you" in json.dumps([event["data"] for event in events])
        if path != "/v1/completions":
            assert all(event["event"] == event["data"]["type"] for event in events)


async def test_refusals_are_those_of_http(gateway: Gateway) -> None:
    async with connected(gateway) as socket:
        await receive(socket)
        await send(socket, "request", id="a", body=chat("none"))
        refused = await receive(socket)
        assert (refused["type"], refused["status"]) == ("error", 404)
        assert refused["data"]["error"]["code"] == "model_not_found"
        await send(socket, "request", id="a", body={"model": "demo", "messages": "no"})
        assert (await receive(socket))["data"]["error"]["param"].startswith("messages")
        await send(socket, "request", id="a", path="/v1/messages", body={"model": "demo"})
        assert (await receive(socket))["data"]["type"] == "error"  # Anthropic's form


BAD: list[tuple[str | bytes, str]] = [
    ("{", "cannot be read"),
    (b"\xff\xfe", "cannot be read"),
    ("[]", "cannot be read"),
    ('{"type": "none"}', "none"),
    ('{"type": "request", "id": "a"}', "body"),
    ('{"type": "request", "id": "", "body": {}}', "id"),
    ('{"type": "request", "id": "a", "body": {}, "path": "/v1/sessions"}', "`path` must be one of"),
    ('{"type": "request", "id": "a", "body": {}, "headers": {"Authorization": "x"}}', "Authorization"),
    ('{"type": "request", "id": "a", "body": {}, "headers": {"X-A": "a\\r\\nb"}}', "'X-A'"),
    (
        '{"type": "request", "id": "a", "body": {}, "headers": {"X-Session-Id": "a", "x-session-id": "b"}}',
        "'x-session-id' twice",
    ),
    ('{"type": "cancel", "id": "a"}', "no request 'a' runs"),
    ('{"type": "resume", "id": "a", "stream_id": "../x"}', "stream_id"),
    ('{"type": "auth", "api_key": "k"}', "has a key already"),
]


async def test_bad_messages_are_answered_and_the_connection_goes_on(gateway: Gateway) -> None:
    async with connected(gateway) as socket:
        await receive(socket)
        for raw, problem in BAD:
            await socket.send(raw)
            message = await receive(socket)
            assert message["type"] == "error", raw
            assert problem in json.dumps(message, ensure_ascii=False), raw
        await send(socket, "ping")
        assert await receive(socket) == {"type": "pong"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.text(max_size=64),
            st.fixed_dictionaries(
                {"type": st.sampled_from(["request", "cancel", "session", "resume", "ping", "auth", 7])},
                optional={
                    "id": st.one_of(st.text(max_size=70), st.integers(), st.none()),
                    "body": st.recursive(
                        st.none() | st.booleans() | st.text(max_size=8) | st.floats(allow_nan=False),
                        lambda inner: (
                            st.lists(inner, max_size=3)
                            | st.dictionaries(st.sampled_from(["model", "messages", "stream", "n"]), inner)
                        ),
                        max_leaves=6,
                    ),
                    "path": st.sampled_from(["/v1/completions", "/tokenize", "/", 1]),
                    "headers": st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
                    "stream_id": st.text(max_size=8),
                    "session_id": st.text(max_size=8),
                },
            ).map(json.dumps),
        ),
        min_size=1,
        max_size=6,
    )
)
async def test_no_message_breaks_the_connection(gateway: Gateway, messages: list[str | bytes]) -> None:
    async with connected(gateway) as socket:
        await receive(socket)
        for raw in messages:
            await socket.send(raw)
        await send(socket, "ping")
        got = await until(socket, "pong")
        codes = [
            one["data"]["error"]["code"] for one in got if one["type"] == "error" and "error" in one["data"]
        ]
        assert "internal" not in codes


async def test_a_connection_has_limits(gateway: Gateway) -> None:
    async with connected(gateway) as socket:
        await receive(socket)
        for name in "abcd":
            await send(socket, "request", id=name, body=chat("stuck", stream=True))
        await send(socket, "request", id="a", body=chat())
        twice = await until(socket, "error")
        assert twice[-1]["data"]["error"]["code"] == "conflict"
        await send(socket, "request", id="e", body=chat())
        over = await until(socket, "error")
        assert (over[-1]["status"], over[-1]["id"]) == (429, "e")
    await gateway.wait_idle()


async def test_chats_have_the_session_of_the_connection(gateway: Gateway) -> None:
    async def session_of(socket: ClientConnection, **fields: Any) -> str:
        await send(socket, "request", id="a", **({"body": chat()} | fields))
        answer = (await until(socket, "answer"))[-1]
        session: str = answer["headers"]["x-session-id"]
        return session

    async with connected(gateway, additional_headers={"X-Session-Id": "my-cat"}) as socket:
        await receive(socket)
        assert await session_of(socket) == "my-cat"
        assert await session_of(socket, headers={"X-Session-Id": "my-dog"}) == "my-dog"
        assert await session_of(socket, body=chat(session_id="my-fish")) == "my-fish"
        await send(socket, "session", session_id="my-bird")
        assert await session_of(socket) == "my-bird"
        await send(socket, "session", session_id="")
        assert (await session_of(socket)).startswith("s-")


async def test_keys() -> None:
    spelled = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
    modes: list[dict[str, Any]] = [
        {"additional_headers": {"Authorization": f"Bearer {KEY}"}},
        {"additional_headers": {"X-Api-Key": KEY}},
        {"subprotocols": ["ryz.realtime.v1", f"ryz.key.{spelled}"]},
        {"subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]},
    ]
    async with running_gateway(api_keys=f"{KEY}:ada", realtime_auth_s=0.3) as gateway:
        for mode in modes:
            async with connected(gateway, **mode) as socket:
                ready = await receive(socket)
                assert (ready["type"], ready["tenant"]) == ("ready", "ada")
                assert socket.subprotocol == mode.get("subprotocols", [None])[0]
        async with connected(gateway) as socket:
            await send(socket, "auth", api_key=KEY)
            assert (await receive(socket))["tenant"] == "ada"
            await send(socket, "request", id="a", body=chat())
            assert (await until(socket, "answer"))[-1]["status"] == 200
            assert gateway.fleet.requests[-1].tenant == "ada"
        for first in ({"type": "auth", "api_key": "wrong-key"}, {"type": "ping"}):
            async with connected(gateway) as socket:
                await socket.send(json.dumps(first))
                assert (await receive(socket))["status"] == 401
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
        async with connected(gateway) as socket:
            with pytest.raises(ConnectionClosed):  # no key came in time
                await socket.recv()
        with pytest.raises(InvalidStatus) as refused:
            async with connected(gateway, additional_headers={"Authorization": "Bearer other"}):
                pass
        assert refused.value.response.status_code == 401
        two = [f"ryz.key.{spelled}", "openai-insecure-api-key.other"]
        for offered in (two, two[::-1]):  # of two, one reader could take the first and another the last
            with pytest.raises(InvalidStatus) as refused:
                async with connected(gateway, subprotocols=offered):
                    pass
            assert refused.value.response.status_code == 400


async def test_an_idle_connection_is_closed_and_others_have_slots() -> None:
    async with running_gateway(realtime_idle_s=1.0, sockets_max=1) as gateway:
        async with connected(gateway) as socket:
            await receive(socket)
            await send(socket, "request", id="a", body=chat("slow", stream=True))
            await until(socket, "event")
            with pytest.raises(InvalidStatus) as refused:
                async with connected(gateway):
                    pass
            assert refused.value.response.status_code == 503
            await asyncio.sleep(1.3)  # it is not idle while a request runs
            await send(socket, "cancel", id="a")
            await until(socket, "cancelled")
            with pytest.raises(ConnectionClosed) as closed:
                await receive(socket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        async with connected(gateway) as socket:
            assert (await receive(socket))["type"] == "ready"


async def test_a_client_that_does_not_read_is_paused_told_and_cut() -> None:
    async with running_gateway(write_timeout_s=2.5, realtime_grace_s=0.3) as gateway:
        async with connected(gateway, max_size=None, max_queue=1) as socket:
            await receive(socket)
            await send(socket, "request", id="a", body=chat("flood", stream=True))
            await asyncio.sleep(1.7)
            assert (await until(socket, "slow"))[-1]["cut_after_s"] == 2.5
            await gateway.fleet.wait_requests(1)
            with pytest.raises(TimeoutError):  # it reads no more, until it is cut off
                async with asyncio.timeout(4):
                    await asyncio.Event().wait()
            await gateway.wait_idle()
        assert gateway.metric("ryz_gateway_slow_readers_total") >= 1
        await gateway.wait_cancelled()


async def test_without_an_upgrade_the_path_says_what_it_is(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        answer = await http.get("/v1/realtime")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    assert "is a WebSocket; connect to it by ws://" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("?model=gpt-realtime", {}),
        ("?call_id=rtc_1", {}),
        ("?intent=transcription", {"Authorization": "Bearer k"}),
        ("", {"OpenAI-Beta": "realtime=v1"}),
    ],
)
async def test_a_client_of_openais_realtime_api_is_told_what_this_is(
    gateway: Gateway, address: str, headers: dict[str, str]
) -> None:
    url = f"ws://127.0.0.1:{gateway.port}/v1/realtime{address}"
    async with connect(url, additional_headers=headers) as socket:
        first = await receive(socket)
        assert (first["type"], first["error"]["code"]) == ("error", "not_openai_realtime")
        assert "docs/realtime.md" in first["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_the_sdk_of_openai_is_told_what_this_is(gateway: Gateway) -> None:
    async with (
        AsyncOpenAI(api_key="k", base_url=f"{gateway.url}/v1") as sdk,
        sdk.realtime.connect(model="gpt-realtime") as connection,
    ):
        event = await connection.recv()
    assert event.type == "error"
    assert event.error.code == "not_openai_realtime"
