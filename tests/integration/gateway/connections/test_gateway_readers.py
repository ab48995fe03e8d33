"""Slow readers over real sockets: their cost for the gateway and for other clients."""

import asyncio
import json
import socket
import statistics
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

import httpx
import pytest

from shared.messages import ChatMessage, SessionRecord
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S, until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]


def memory_mb() -> float:
    """Resident memory of this process, in which the gateway runs."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


async def ask(stack: AsyncExitStack, gateway: Gateway, headers: str = "", **fields: Any) -> None:
    """Sends a request and reads nothing of the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    stack.callback(writer.close)  # keeps a reference to the writer, which closes when it is collected
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


@pytest.mark.alone
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
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 8)
        for request in gateway.fleet.requests:
            if request.model == "flood":
                await gateway.fleet.cancel_of(request.request_id).wait()
        grown_mb = memory_mb() - before_mb
        print(f"8 streams not read: another client's p99 {p99_s * 1e3:.0f} ms, {grown_mb:.0f} MB more memory")
        assert grown_mb < 200
        assert p99_s < 2
        await until(lambda: gateway.running == 0)


async def test_a_whole_answer_that_is_not_read_is_cut_off() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(write_timeout_s=0.5))
        await ask(stack, gateway, model="long")
        await gateway.fleet.wait_requests(1)
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1)
        await until(lambda: gateway.running == 0)


async def test_a_slow_reader_that_reads_gets_all_of_it() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(write_timeout_s=2.5))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S))
        size, began = 0, time.monotonic()
        async with http.stream("POST", CHAT, json={"model": "long", "messages": MESSAGES}) as answer:
            async for piece in answer.aiter_bytes():
                if size // 1_000_000 != (size + len(piece)) // 1_000_000:
                    await asyncio.sleep(0.15)  # far below the limit, also where it lasts longer
                size += len(piece)
        assert time.monotonic() - began > 2.5, "the answer as a whole took less time than the limit"
        assert size > 20_000_000
        assert gateway.metric("ryz_gateway_slow_readers_total") == 0


async def test_a_stream_with_a_grace_waits_for_a_reader_that_was_cut_off() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(write_timeout_s=0.5, stream_grace_s=30, stream_max_grace_s=30)
        )
        await ask(stack, gateway, model="flood", stream=True)
        await until(lambda: gateway.metric("ryz_gateway_parked_streams") == 1)
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
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1)
        await until(lambda: gateway.running == 0)
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
        assert "524288 are allowed" in error["message"]
        assert gateway.fleet.requests == []


async def export_unread(stack: AsyncExitStack, gateway: Gateway, key: str) -> socket.socket:
    """Requests the export of the session `long` and reads only its first bytes."""
    asking = socket.socket()
    stack.callback(asking.close)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect(("127.0.0.1", gateway.port))
    asking.sendall(
        b"GET /v1/sessions/long/export HTTP/1.1\r\nHost: localhost\r\n"
        + f"Authorization: Bearer {key}\r\n\r\n".encode()
    )
    asking.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        assert (await loop.sock_recv(asking, 12)).endswith(b"200")
    return asking


def with_long_sessions(gateway: Gateway, *tenants: str, size: int = 12_000_000) -> None:
    for tenant in tenants:
        gateway.fleet.sessions.records[tenant, "long"] = SessionRecord(
            session_id="long",
            tenant=tenant,
            model="demo",
            version=1,
            messages=[ChatMessage(role="user", content="x" * size)],
        )


async def test_exports_that_are_not_read_count_with_the_answers_of_their_tenant() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(
                max_payload=2**24,
                api_keys="secret-a:acme,secret-b:birch",
                max_unread_bytes=64 * 2**20,
                write_timeout_s=60,
            )
        )
        with_long_sessions(gateway, "acme", "birch")
        birch = await export_unread(stack, gateway, "secret-b")
        acme = [await export_unread(stack, gateway, "secret-a") for _ in range(5)]
        # two exports fit into half of the memory, which is the limit of one tenant
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 3)
        await until(lambda: gateway.running == 3)
        whole = [await read_all(one) > 12_000_000 for one in (birch, *acme)]
        assert whole[0], "another tenant's answer is not touched"
        assert sum(whole) == 3
        await until(lambda: gateway.running == 0)


async def read_all(asking: socket.socket) -> int:
    """The number of bytes received until the answer is complete or the connection is closed."""
    size, loop = 0, asyncio.get_running_loop()
    with suppress(TimeoutError, ConnectionError):
        while piece := await asyncio.wait_for(loop.sock_recv(asking, 2**20), 5):
            size += len(piece)
    return size


async def test_exports_of_all_tenants_fit_into_the_memory() -> None:
    async with AsyncExitStack() as stack:
        keys = ",".join(f"secret-{name}:{name}" for name in "abcd")
        gateway = await stack.enter_async_context(
            running_gateway(max_payload=2**24, api_keys=keys, max_unread_bytes=32 * 2**20, write_timeout_s=60)
        )
        with_long_sessions(gateway, *"abcd")
        for name in "abcd":
            await export_unread(stack, gateway, f"secret-{name}")
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 2)
        await until(lambda: gateway.running == 2)


async def test_an_export_whose_reader_takes_nothing_is_cut_off_and_counted() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(max_payload=2**24, write_timeout_s=0.5))
        with_long_sessions(gateway, "default")
        asking = await export_unread(stack, gateway, "any")
        await until(lambda: gateway.metric("ryz_gateway_slow_readers_total") == 1)
        await until(lambda: gateway.running == 0)
        assert await read_all(asking) < 12_000_000


async def test_a_gateway_that_stops_waits_for_no_reader_of_an_export() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(max_payload=2**24, write_timeout_s=60))
        with_long_sessions(gateway, "default")
        await export_unread(stack, gateway, "any")
        await until(lambda: gateway.running == 1)
        async with asyncio.timeout(30):  # half of the time that the reader has
            await gateway.stack.aclose()
