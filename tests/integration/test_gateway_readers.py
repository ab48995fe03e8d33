"""Readers that do not read: what they cost the gateway and the others. Real sockets."""

import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

import httpx

from tests.gateway_kit import Gateway, eventually, running_gateway

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]


def memory_mb() -> float:
    """Resident memory of this process, in which the gateway runs."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


async def ask(stack: AsyncExitStack, gateway: Gateway, headers: str = "", **fields: Any) -> None:
    """Sends a request and reads nothing of the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    stack.callback(writer.close)  # holds the writer, which ends with its last reference
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    body = json.dumps({"messages": MESSAGES, **fields}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def p99_of_another(gateway: Gateway, count: int = 60) -> float:
    times_s = []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as http:
        for _ in range(count):
            began_s = time.monotonic()
            answer = await http.post(CHAT, json={"model": "demo", "messages": MESSAGES})
            assert answer.status_code == 200
            times_s.append(time.monotonic() - began_s)
    return statistics.quantiles(times_s, n=100)[98]


async def test_streams_that_are_not_read_are_cut_off_and_take_little_memory() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(max_unread_bytes=32 * 2**20, write_timeout_s=60)
        )
        before_mb = memory_mb()
        for _ in range(8):
            await ask(stack, gateway, model="flood", stream=True)
        await gateway.fleet.wait_requests(8)
        p99_s = await p99_of_another(gateway)
        await eventually(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 8, 20)
        for request in gateway.fleet.requests:
            if request.model == "flood":
                await gateway.fleet.cancel_of(request.request_id).wait()
        grown_mb = memory_mb() - before_mb
        print(f"8 streams not read: another client's p99 {p99_s * 1e3:.0f} ms, {grown_mb:.0f} MB more memory")
        assert grown_mb < 200
        assert p99_s < 2
        await eventually(lambda: gateway.running == 0, 10)


async def test_a_whole_answer_that_is_not_read_is_cut_off() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(write_timeout_s=0.5))
        await ask(stack, gateway, model="long")
        await gateway.fleet.wait_requests(1)
        await eventually(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1, 20)
        await eventually(lambda: gateway.running == 0, 10)


async def test_a_slow_reader_that_reads_gets_all_of_it() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(write_timeout_s=1.0))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        size = 0
        async with http.stream("POST", CHAT, json={"model": "long", "messages": MESSAGES}) as answer:
            async for piece in answer.aiter_bytes():
                if size // 4_000_000 != (size + len(piece)) // 4_000_000:
                    await asyncio.sleep(0.3)
                size += len(piece)
        assert size > 20_000_000
        assert gateway.metric("ryz_gateway_slow_readers_total") == 0


async def test_a_stream_with_a_grace_waits_for_a_reader_that_was_cut_off() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(write_timeout_s=0.5, stream_grace_s=30, stream_max_grace_s=30)
        )
        await ask(stack, gateway, model="flood", stream=True)
        await eventually(lambda: gateway.metric("ryz_gateway_parked_streams") == 1, 20)
        (request,) = gateway.fleet.requests
        assert not gateway.fleet.cancel_of(request.request_id).is_set()
        assert gateway.metric("ryz_gateway_slow_readers_total") == 1


async def test_the_answers_of_one_tenant_take_their_share_of_the_memory() -> None:
    keys = "secret-a:acme,secret-b:birch"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(api_keys=keys, max_unread_bytes=16 * 2**20, write_timeout_s=60)
        )
        acme, birch = ("Authorization: Bearer secret-a\r\n", {"Authorization": "Bearer secret-b"})
        await ask(stack, gateway, acme, model="long")
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        answer = await http.post(CHAT, json={"model": "demo", "messages": MESSAGES}, headers=birch)
        assert answer.status_code == 200
        await eventually(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1, 20)
        await eventually(lambda: gateway.running == 0, 10)
        answer = await http.post(CHAT, json={"model": "demo", "messages": MESSAGES}, headers=birch)
        assert answer.status_code == 200


async def test_a_call_that_asks_for_too_much_is_refused_and_names_the_fields() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway())
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url))
        body = {"model": "demo", "messages": MESSAGES, "n": 16, "max_tokens": 100_000}
        answer = await http.post(CHAT, json=body | {"logprobs": True, "top_logprobs": 20})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "max_tokens")
        assert "`n`" in error["message"]
        assert "RYZ_MAX_ANSWER_ENTRIES" in error["message"]
        assert gateway.fleet.requests == []
