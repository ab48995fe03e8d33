"""WebSocket mode of the Responses API, over real sockets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.tls import Authority
from tests.kits.waiting import PATIENCE_S, until

KEY = {"Authorization": "Bearer key-of-one"}


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys="key-of-one:one,key-of-two:two") as gateway:
        yield gateway


def opened(gateway: Gateway, headers: dict[str, str] | None = None, path: str = "/v1/responses") -> connect:
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", additional_headers=KEY | (headers or {}))


async def asked(socket: ClientConnection, model: str = "demo", **body: Any) -> list[dict[str, Any]]:
    """The events of one response."""
    await socket.send(json.dumps({"type": "response.create", "model": model, "input": "hi"} | body))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in {
        "response.completed", "response.incomplete", "response.failed", "error",
    }:  # fmt: skip
        events.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S)))
    return events


async def test_responses_follow_each_other_on_one_connection(gateway: Gateway) -> None:
    async with opened(gateway) as socket:
        first = await asked(socket, "parts")
        assert [event["sequence_number"] for event in first] == list(range(len(first)))
        assert first[0]["type"] == "response.created"
        async with httpx.AsyncClient(base_url=gateway.url, headers=KEY) as http:
            name = first[-1]["response"]["id"]
            assert (await http.get(f"/v1/responses/{name}")).json() == first[-1]["response"]
        results = [
            {"type": "function_call_output", "call_id": call_id, "output": "x"}
            for call_id in ("call_a", "call_b")
        ]
        second = await asked(socket, input=results, previous_response_id=name, store=False)
        third = await asked(socket, previous_response_id=second[-1]["response"]["id"], store=False)
        assert third[-1]["type"] == "response.completed"
        messages = gateway.fleet.requests[-1].messages
        assert messages is not None
        roles = [message.role for message in messages]
        assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert gateway.metric("ryz_gateway_requests_total", route="/v1/responses", status="200") == 3
    await until(lambda: gateway.metric("ryz_gateway_connections") == 0)


async def test_errors_are_events_and_the_connection_goes_on(gateway: Gateway) -> None:
    async with opened(gateway) as socket:
        for body, status, param in (
            ({"temperature": 9}, 400, "temperature"),
            ({"type": "session.update"}, 400, "type"),
            ({"background": True}, 400, "background"),
            ({"model": "none"}, 404, "model"),
            ({"previous_response_id": "resp_none"}, 404, "previous_response_id"),
        ):
            (error,) = await asked(socket, **body)
            assert (error["status"], error["param"], error["error"]["param"]) == (status, param, param)
        await socket.send("no json")
        assert json.loads(await socket.recv())["status"] == 400
        assert (await asked(socket, "breaks"))[-1]["type"] == "response.failed"
        assert (await asked(socket))[-1]["type"] == "response.completed"


async def test_who_may_not_is_refused_before_the_upgrade(gateway: Gateway) -> None:
    for name, key, status in (("127.0.0.1", "wrong-key", 401), ("evil.example", "key-of-one", 421)):
        headers = {"Authorization": f"Bearer {key}"}
        url = f"ws://{name}:{gateway.port}/v1/responses"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url, host="127.0.0.1", additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
    with pytest.raises(InvalidStatus):
        async with opened(gateway, path="/v1/chat/completions"):
            pass
    async with running_gateway() as free:  # without keys a page of another site could use it
        with pytest.raises(InvalidStatus) as refused:
            async with opened(free, {"Origin": "https://evil.example"}):
                pass
        assert refused.value.response.status_code == 403


async def test_a_client_that_leaves_ends_its_response(gateway: Gateway) -> None:
    async with opened(gateway) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "slow", "input": "hi"}))
        for _ in range(6):
            await socket.recv()
    await gateway.wait_cancelled()
    await until(lambda: not gateway.running)
    await until(lambda: gateway.metric("ryz_gateway_connections") == 0)


async def test_limits_of_connections_messages_and_time() -> None:
    async with running_gateway(sockets_max=1, response_socket_idle_s=0.3, max_body_bytes=2048) as gateway:
        async with opened(gateway) as socket:
            await socket.send(json.dumps({"type": "response.create", "model": "stuck", "input": "x"}))
            await gateway.fleet.wait_requests(1)
            with pytest.raises(InvalidStatus) as refused:
                async with opened(gateway):
                    pass
            assert refused.value.response.status_code == 503
        await gateway.wait_idle()
        async with opened(gateway) as socket:
            with pytest.raises(ConnectionClosed) as idle:
                await socket.recv()
            assert idle.value.rcvd is not None
            assert idle.value.rcvd.code == 1001
        async with opened(gateway) as socket:
            with pytest.raises(ConnectionClosed) as large:
                await asked(socket, input="x" * 5000)
            assert large.value.rcvd is not None
            assert large.value.rcvd.code == 1009
        async with opened(gateway) as socket:
            for _ in range(9):
                await socket.send(json.dumps({"type": "response.create", "model": "slow", "input": "x"}))
            with pytest.raises(ConnectionClosed) as many:
                await asked(socket)
            assert many.value.rcvd is not None
            assert many.value.rcvd.code == 1008


async def test_over_tls_and_after_another_request_on_the_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue()
    async with running_gateway(http_cert=own.cert, http_key=own.key) as gateway:
        context = ssl.create_default_context(cafile=authority.ca)
        async with connect(f"wss://127.0.0.1:{gateway.port}/v1/responses", ssl=context) as socket:
            assert (await asked(socket))[-1]["type"] == "response.completed"
        await until(lambda: gateway.metric("ryz_gateway_connections") == 0)
    async with running_gateway() as gateway:  # a connection that was used before stays HTTP
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert b"405" in await asyncio.wait_for(reader.readuntil(b"Method Not Allowed\r\n"), PATIENCE_S)
        writer.close()
