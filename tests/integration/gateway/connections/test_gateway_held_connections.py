"""Idle connections held by one address: active clients get through, running requests continue.

Real sockets, against a gateway, its TLS, and a service's admin endpoints with the supervisor's probe.
"""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.stack.probes import Probes
from shared.lifecycle import Service
from shared.settings import CommonSettings
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import RawConnection, ask, raw_connection
from tests.kits.tls import Authority
from tests.kits.waiting import PATIENCE_S, until

HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hello"}]}'
STREAMED = BODY[:-1].replace(b"demo", b"slow") + b',"stream":true}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LIMIT = 16


def post(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def holding(port: int, count: int, sent: bytes) -> AsyncIterator[list[RawConnection]]:
    """Opens `count` connections that send `sent` and then nothing."""
    async with AsyncExitStack() as stack:
        held = []
        for _ in range(count):
            connection = await stack.enter_async_context(raw_connection(port))
            await connection.send(sent)
            held.append(connection)
        yield held


def was_evicted(gateway: Gateway) -> float:
    return gateway.metric("ryz_gateway_closed_connections_total", reason="address_gave_way")


@pytest.mark.parametrize(
    "sent",
    [b"", HEAD, HEAD + b"\r\n", b"POST /none HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"],
    ids=["nothing", "half of the headers", "one request", "a body that does not come"],
)
async def test_those_who_talk_get_through(sent: bytes) -> None:
    async with (
        running_gateway(http_max_connections_per_address=LIMIT) as gateway,
        holding(gateway.port, LIMIT, sent) as held,
    ):
        if sent.endswith(b"\r\n\r\n"):
            for connection in held:
                assert (await connection.answer()).status in (200, 404)
        await until(lambda: gateway.metric("ryz_gateway_connections") == LIMIT)
        for _ in range(3 * LIMIT):
            assert (await ask(gateway.port, post(BODY))).status == 200
            assert gateway.metric("ryz_gateway_connections") <= LIMIT
        assert was_evicted(gateway) > 0
        assert not gateway.metric("ryz_gateway_refused_connections_total", reason="address_connections")


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n"], ids=["nothing", "half", "one request"])
async def test_those_who_talk_get_through_while_held_ones_are_opened_again(sent: bytes) -> None:
    """Each closed connection is reopened at once, as by an attacker; all of 100 requests are answered."""
    async with running_gateway(http_max_connections_per_address=LIMIT) as gateway:
        one_at_a_time = asyncio.Lock()  # else all could have a request running and none would be idle

        async def hold() -> None:
            while True:
                async with AsyncExitStack() as stack:
                    async with one_at_a_time:
                        connection = await stack.enter_async_context(raw_connection(gateway.port))
                        await connection.send(sent)
                        if sent.endswith(b"\r\n\r\n"):
                            with suppress(EOFError):  # the connection was closed in favour of another
                                await connection.answer()
                        await asyncio.sleep(0.002)
                    await connection.closed(60)

        async with asyncio.TaskGroup() as attackers:
            tasks = [attackers.create_task(hold()) for _ in range(LIMIT)]
            await until(lambda: gateway.metric("ryz_gateway_connections") == LIMIT)
            await asyncio.sleep(0.05)
            statuses = [(await ask(gateway.port, post(BODY))).status for _ in range(100)]
            for task in tasks:
                task.cancel()
        assert statuses == [200] * 100


async def test_a_request_under_way_is_never_cut() -> None:
    async with running_gateway(http_max_connections_per_address=LIMIT) as gateway:
        async with holding(gateway.port, LIMIT - 1, post(STREAMED)) as busy:
            await gateway.fleet.wait_requests(LIMIT - 1)
            for _ in range(5):
                async with raw_connection(gateway.port) as held:
                    assert (await ask(gateway.port, post(BODY))).status == 200
                    assert await held.closed()
            async with raw_connection(gateway.port) as last:
                await last.send(post(STREAMED))
                await gateway.fleet.wait_requests(LIMIT + 5)
                answer = await ask(gateway.port, HEAD + b"\r\n")
                assert (answer.status, answer.error["code"]) == (429, "address_connections")
                assert gateway.running == LIMIT
                for connection in (*busy, last):
                    async with asyncio.timeout(PATIENCE_S):
                        assert await connection.reader.readuntil(b"data: ")
        await gateway.wait_idle()


async def test_a_connection_that_is_kept_outlives_silent_ones() -> None:
    async with (
        running_gateway(http_max_connections_per_address=LIMIT) as gateway,
        raw_connection(gateway.port) as kept,
        holding(gateway.port, LIMIT - 1, b"") as silent,
    ):
        await kept.send(post(BODY))
        assert (await kept.answer()).status == 200
        await asyncio.sleep(1.1)  # a new connection is protected for a second
        for _ in range(LIMIT - 1):
            assert (await ask(gateway.port, HEAD + b"\r\n")).status == 200
        await kept.send(post(BODY))
        assert (await kept.answer()).status == 200
        assert await silent[0].closed()


async def test_a_handshake_that_does_not_end_gives_way(tmp_path: Path) -> None:
    own = (authority := Authority(tmp_path)).issue()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    tls: dict[str, Any] = {"http_cert": own.cert, "http_key": own.key}
    async with running_gateway(http_max_connections_per_address=LIMIT, **tls) as gateway:
        context = ssl.create_default_context(cafile=authority.ca)
        async with holding(gateway.port, LIMIT, b"\x16\x03\x01\x02\x00\x01\x00"):
            await until(lambda: gateway.metric("ryz_gateway_connections") == LIMIT)
            for _ in range(LIMIT):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
                connection = RawConnection(reader, writer)
                await connection.send(post(BODY))
                assert (await connection.answer()).status == 200
                writer.close()
        await until(lambda: gateway.metric("ryz_gateway_connections") == 0)
        assert was_evicted(gateway) > 0
    gc.collect()
    assert not errors


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["nothing", "half of the headers"])
async def test_the_supervisor_sees_readiness_beside_held_admin_connections(sent: bytes) -> None:
    service = Service(CommonSettings(admin_port=0), "held")
    probes = Probes()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(probes.close)
        port = await service.serve_admin(stack)
        probe = probes.admin(port)
        async with holding(port, 40, sent):
            assert not await probe()
            service.ready()
            for _ in range(40):
                assert await probe()
                async with httpx.AsyncClient() as http:
                    assert (await http.get(f"http://127.0.0.1:{port}/live")).status_code == 200
