"""Requests that end early: callers that disconnect, readers that do not read, a gateway that stops."""

import asyncio
import json
import random
import socket
import struct
import time
from typing import Any

import httpx
import pytest

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S, until

CHAT = "/v1/chat/completions"


def request_bytes(model: str, *, stream: bool, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "Hello"}]
    body = json.dumps({"model": model, "messages": messages, "stream": stream, **fields}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def connect(gateway: Gateway, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(raw)
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("model", "stream"), [("slow", True), ("slow", False), ("stuck", True), ("stuck", False)]
)
async def test_a_caller_that_leaves_cancels_its_generation(model: str, stream: bool) -> None:
    async with running_gateway() as gateway:
        reader, writer = await connect(gateway, request_bytes(model, stream=stream))
        await gateway.fleet.wait_requests(1)
        if model == "slow" and stream:
            await reader.readuntil(b"word")
        await hang_up(writer)
        await gateway.wait_cancelled()
        await gateway.wait_idle()
        assert gateway.metric("ryz_gateway_cancelled_total") == 1
        assert gateway.metric("ryz_gateway_open_streams") == 0


@pytest.mark.parametrize("ahead", ["", "request", "half a body"])
@pytest.mark.parametrize("size", [10, 700_000])
@pytest.mark.parametrize("mode", ["close", "reset", "half-close"])
async def test_leaving_is_noticed_while_the_connection_is_not_read_from(
    mode: str, size: int, ahead: str
) -> None:
    """The server stops reading after a long body and after a pipelined request."""
    async with running_gateway() as gateway:
        raw = request_bytes("stuck", stream=False, user="u", metadata={"pad": "x" * size})
        _, writer = await connect(gateway, b"")
        for start in range(0, len(raw), 50_000):
            writer.write(raw[start : start + 50_000])
            await writer.drain()
            await asyncio.sleep(0.002)
        await gateway.fleet.wait_requests(1)
        if ahead == "request":
            writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        elif ahead:
            writer.write(request_bytes("demo", stream=False, metadata={"pad": "x" * 200_000})[:150_000])
        await asyncio.sleep(0.05)
        assert gateway.running == 1
        if mode == "half-close":
            writer.write_eof()
        else:
            sock = writer.get_extra_info("socket")
            if mode == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await gateway.wait_cancelled()
        await gateway.wait_idle()
        assert gateway.metric("ryz_gateway_requests_total", status="500") == 0
        writer.close()


async def test_leaving_in_the_middle_of_the_body_takes_no_slot() -> None:
    async with running_gateway() as gateway:
        raw = request_bytes("demo", stream=False)
        _, writer = await connect(gateway, raw[:-5])
        await until(lambda: gateway.service.status().detail["bodies"] == 1)
        assert gateway.running == 0
        await hang_up(writer)
        await until(lambda: gateway.service.status().detail["bodies"] == 0)
        assert gateway.fleet.requests == []


async def test_leaving_ends_all_prompts_of_a_call() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        body = {"model": "slow", "prompt": ["a", "b", "c"], "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            seen: set[int] = set()
            async for line in answer.aiter_lines():
                if line:
                    seen.add(json.loads(line.removeprefix("data: "))["choices"][0]["index"])
                if len(seen) == 3:
                    break
        assert len(gateway.fleet.requests) == 3
        await gateway.wait_cancelled()
        await gateway.wait_idle()


async def test_one_callers_end_touches_no_other_caller() -> None:
    rng = random.Random(5)
    async with running_gateway() as gateway:

        async def leaver() -> None:
            _, writer = await connect(gateway, request_bytes("slow", stream=rng.random() < 0.5))
            await asyncio.sleep(rng.random() * 0.2)
            await hang_up(writer)

        async def stayer(http: httpx.AsyncClient) -> str:
            body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True}
            await asyncio.sleep(rng.random() * 0.2)
            return (await http.post(CHAT, json=body)).text

        async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as http:
            leavers = [asyncio.create_task(leaver()) for _ in range(30)]
            texts = await asyncio.gather(*(stayer(http) for _ in range(30)))
            await asyncio.gather(*leavers)
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        await gateway.wait_idle()


async def test_a_caller_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.answering.answer.DEADLINE_MARGIN_S", 0.1)
    monkeypatch.setattr("services.gateway.transports.http.exchange.LINGER_S", 0.1)
    async with running_gateway() as gateway:
        began = time.monotonic()
        _, writer = await connect(gateway, request_bytes("flood", stream=True, timeout=0.5))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await gateway.fleet.wait_requests(1)
        await until(lambda: not gateway.running)
        assert time.monotonic() - began >= 0.5, "it has the whole time of its request"
        await gateway.wait_cancelled()
        await hang_up(writer)


async def test_a_drain_lets_a_request_finish_and_refuses_new_ones() -> None:
    async with running_gateway(drain_timeout_s=3.0) as gateway:
        body = {"model": "stuck", "messages": [{"role": "user", "content": "x"}], "timeout": 0.4}
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            running = asyncio.create_task(http.post(CHAT, json=body))
            await gateway.fleet.wait_requests(1)
            draining = asyncio.create_task(gateway.service.drain())
            await asyncio.sleep(0.02)
            assert not draining.done()
            refused = await http.post(CHAT, json=body)
            assert (refused.status_code, refused.headers["x-ryz-reason"]) == (503, "not_ready")
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/live")).status_code == 200
            assert (await running).status_code == 504
            async with asyncio.timeout(PATIENCE_S):
                await draining


async def test_a_drain_that_takes_too_long_tells_the_callers() -> None:
    async with httpx.AsyncClient(timeout=10) as http:
        async with running_gateway(drain_timeout_s=0.1) as gateway:
            body = {"model": "slow", "messages": [{"role": "user", "content": "x"}]}
            url = gateway.url + CHAT
            streamed = asyncio.create_task(http.post(url, json=body | {"stream": True}))
            whole = asyncio.create_task(http.post(url, json=body))
            await gateway.fleet.wait_requests(2)
        assert (await whole).status_code == 503
        assert (await whole).headers["x-ryz-reason"] == "draining"
        text = (await streamed).text
        assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "unavailable"
        assert "[DONE]" not in text
