"""One tenant or one address uses all it can; others still get their share. Real sockets."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from services.gateway.admission.bodies import large
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
KEYS = "secret-a:acme,secret-b:birch"
ACME, BIRCH = {"Authorization": "Bearer secret-a"}, {"Authorization": "Bearer secret-b"}


def body(model: str = "demo", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES} | fields


async def slow_body(stack: AsyncExitStack, gateway: Gateway, size: int, sent: bytes, key: str = "") -> None:
    """Opens a connection that declares a body of `size` bytes and sends the beginning of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    stack.callback(writer.close)
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode() + sent)


def in_flight(gateway: Gateway) -> int:
    count = gateway.service.status().detail["bodies"]
    assert isinstance(count, int)
    return count


def memory_mb() -> float:
    """Resident memory of this process, in which the gateway runs."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


@pytest.mark.alone
async def test_slow_bodies_hold_no_slot_and_do_not_slow_others_down() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(max_concurrent=8, max_bodies=1000))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        before_mb = memory_mb()
        for _ in range(200):
            await slow_body(stack, gateway, 1_000_000, b'{"model": "demo", ' + b" " * 50_000)
        await until(lambda: in_flight(gateway) == 200)
        assert gateway.running == 0
        times_s = []
        for _ in range(100):
            began_s = time.monotonic()
            assert (await http.post(CHAT, json=body())).status_code == 200
            times_s.append(time.monotonic() - began_s)
        p99_s, grown_mb = statistics.quantiles(times_s, n=100)[98], memory_mb() - before_mb
        print(f"200 slow bodies: another client's p99 {p99_s * 1e3:.0f} ms, {grown_mb:.0f} MB more memory")
        assert p99_s < 2
        assert grown_mb < 100


async def test_bodies_under_way_have_a_bound_for_an_address_where_there_are_no_keys() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(max_bodies=4))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url))
        for _ in range(2):
            await slow_body(stack, gateway, 1000, b"{")
        await until(lambda: in_flight(gateway) == 2)

        async def parts() -> AsyncIterator[bytes]:
            yield json.dumps(body()).encode()[:10]
            await asyncio.sleep(0.05)  # otherwise the whole body may arrive with the headers
            yield json.dumps(body()).encode()[10:]

        answer = await http.post(CHAT, content=parts(), headers={"content-type": "application/json"})
        assert (answer.status_code, answer.headers["x-ryz-reason"]) == (429, "tenant_gateway_bodies")
        assert answer.headers["retry-after"] == "1"
        # a body that is already complete neither waits nor counts
        assert (await http.post(CHAT, json=body())).status_code == 200


async def test_a_tenant_has_its_share_of_the_slots_and_others_the_rest() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(api_keys=KEYS, max_concurrent=4))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        stuck = [
            asyncio.create_task(http.post(CHAT, json=body("stuck", timeout=0.5), headers=ACME))
            for _ in range(2)
        ]
        await gateway.fleet.wait_requests(2)
        refused = await http.post(CHAT, json=body(), headers=ACME)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert refused.headers["x-ryz-reason"] == "tenant_gateway_concurrency"
        assert refused.headers["retry-after"] == "1"
        assert "'acme' has 2 requests under way" in refused.json()["error"]["message"]
        assert (await http.get("/v1/sessions", headers=ACME)).status_code == 429
        assert (await http.post(CHAT, json=body(), headers=BIRCH)).status_code == 200
        assert (await http.get("/v1/sessions", headers=BIRCH)).status_code == 200
        assert [answer.status_code for answer in await asyncio.gather(*stuck)] == [504, 504]
        assert (await http.post(CHAT, json=body(), headers=ACME)).status_code == 200


async def test_without_keys_an_address_has_its_share_and_counts_in_the_groups() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(max_concurrent=8, http_trusted_proxies="127.0.0.9")
        )

        async def caller(address: str) -> httpx.AsyncClient:
            transport = httpx.AsyncHTTPTransport(local_address=address)
            client = httpx.AsyncClient(base_url=gateway.url, timeout=20, transport=transport)
            return await stack.enter_async_context(client)

        one, other, proxy = [await caller(f"127.0.0.{end}") for end in (2, 3, 9)]
        stuck = [asyncio.create_task(one.post(CHAT, json=body("stuck", timeout=1.5))) for _ in range(7)]
        await gateway.fleet.wait_requests(7)
        refused = await one.post(CHAT, json=body())
        assert (refused.status_code, refused.headers["x-ryz-reason"]) == (429, "tenant_gateway_concurrency")
        assert "'address 127.0.0.2' has 7 requests under way" in refused.json()["error"]["message"]
        assert (await one.get("/v1/sessions")).status_code == 429
        assert (await other.post(CHAT, json=body())).status_code == 200
        assert (await other.get("/v1/sessions")).status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*stuck)} == {504}
        await other.post("/v1/messages", json=body(max_tokens=9))
        await other.post("/v1/responses", json={"model": "demo", "input": "Hello", "store": False})
        await other.post("/v1/embeddings", json={"model": "demo", "input": "Hello"})
        parties = [(request.tenant, request.party) for request in gateway.fleet.requests]
        assert parties[:7] == [("default", "address 127.0.0.2")] * 7
        assert set(parties[7:]) == {("default", "address 127.0.0.3")}
        assert len(parties[7:]) == 4
        # callers behind a proxy may have everything, since they cannot be told apart
        stuck = [asyncio.create_task(proxy.post(CHAT, json=body("stuck", timeout=0.5))) for _ in range(8)]
        assert {answer.status_code for answer in await asyncio.gather(*stuck)} == {504}
        assert {request.party for request in gateway.fleet.requests[11:]} == {""}


async def test_one_tenant_alone_may_have_all_slots() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(api_keys="secret-a:acme", max_concurrent=4))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        stuck = [
            asyncio.create_task(http.post(CHAT, json=body("stuck", timeout=0.3), headers=ACME))
            for _ in range(3)
        ]
        await gateway.fleet.wait_requests(3)
        assert (await http.post(CHAT, json=body(), headers=ACME)).status_code == 200
        await asyncio.gather(*stuck)


async def test_bytes_of_bodies_have_a_bound_for_a_tenant() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(api_keys=KEYS, max_held_bytes=2**20))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        await slow_body(stack, gateway, 1_000_000, b" " * 500_000, "secret-a")
        await until(lambda: gateway.service.status().detail["held_bytes"] == 500_000)
        large = body(messages=[{"role": "user", "content": "x" * 100_000}])
        refused = await http.post(CHAT, json=large, headers=ACME)
        assert (refused.status_code, refused.headers["x-ryz-reason"]) == (429, "tenant_gateway_memory")
        assert (await http.post(CHAT, json=large, headers=BIRCH)).status_code == 200
        await until(lambda: gateway.service.status().detail["held_bytes"] == 500_000)


async def test_parked_streams_have_a_bound_for_a_tenant() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running_gateway(api_keys=KEYS, stream_max_parked=2, stream_grace_s=30)
        )
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=20))
        for headers, parked in ((ACME, 1), (ACME, 1), (BIRCH, 2)):
            slow = body("slow", stream=True)
            async with http.stream("POST", CHAT, json=slow, headers=headers) as answer:
                await answer.aiter_bytes().__anext__()
            await until(lambda: gateway.metric("ryz_gateway_open_streams") == 0)
            assert gateway.metric("ryz_gateway_parked_streams") == parked
            await until(lambda parked=parked: gateway.running == parked)  # type: ignore[misc]


async def test_large_bodies_wait_in_line_and_small_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "REST", 1000.0)  # as if the first body had taken very long
    ids = {"model": "demo", "prompt": [1] * 5000, "max_tokens": 1}
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(api_keys=KEYS))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=60))
        assert (await http.post("/v1/completions", json=ids, headers=ACME)).status_code == 200
        waiting = asyncio.create_task(http.post("/v1/completions", json=ids, headers=ACME))
        messages = [{"role": "user", "content": "Hello"}] * 2000
        session = asyncio.create_task(
            http.post("/v1/sessions", json={"model": "demo", "messages": messages}, headers=BIRCH)
        )
        await until(lambda: gateway.running == 2)
        for headers in (ACME, BIRCH):
            assert (await http.post(CHAT, json=body(), headers=headers)).status_code == 200
        assert not waiting.done()
        assert not session.done()
        assert (await waiting).status_code == 200
        session.cancel()
