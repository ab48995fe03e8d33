"""Limits on connections, partial headers and TLS handshakes, over real sockets."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kits.gateway.edge_requests import BODY, HEAD, POST, QUICK, refused, serves
from tests.kits.gateway.gateway import running_gateway
from tests.kits.gateway.raw_http import RawConnection, ask, raw_connection
from tests.kits.tls import Authority
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_connections_of_one_address_are_bounded() -> None:
    async with running_gateway(
        http_max_connections_per_address=3, http_trusted_proxies="127.0.0.9/32"
    ) as gateway:
        streamed = BODY[:-1].replace(b"demo", b"slow") + b',"stream":true}'
        held = [raw_connection(gateway.port) for _ in range(3)]
        for one in held:
            busy = await one.__aenter__()
            await busy.send(POST + b"Content-Length: %d\r\n\r\n" % len(streamed) + streamed)
        await gateway.fleet.wait_requests(3)
        answer = await ask(gateway.port, HEAD + b"\r\n")
        assert (answer.status, answer.error["code"]) == (429, "address_connections")
        assert answer.headers["retry-after"] == "1"
        for source in ("127.0.0.2", *["127.0.0.9"] * 5):
            async with raw_connection(gateway.port, source) as other:
                await other.send(HEAD + b"\r\n")
                assert (await other.answer()).status == 200
        await held[0].__aexit__(None, None, None)
        await until(lambda: gateway.metric("ryz_gateway_connections") == 2)
        assert (await ask(gateway.port, HEAD + b"\r\n")).status == 200
        for one in held[1:]:
            await one.__aexit__(None, None, None)
        counted = gateway.metric("ryz_gateway_refused_connections_total", reason="address_connections")
        assert counted == 1


async def test_an_idle_connection_gives_way_and_a_busy_one_does_not() -> None:
    streamed = BODY[:-1].replace(b"demo", b"slow") + b',"stream":true}'
    async with running_gateway(max_connections=2) as gateway:
        async with raw_connection(gateway.port) as busy, raw_connection(gateway.port) as idle:
            await busy.send(POST + b"Content-Length: %d\r\n\r\n" % len(streamed) + streamed)
            await idle.send(HEAD + b"\r\n")
            assert (await idle.answer()).status == 200
            await gateway.fleet.wait_requests(1)
            async with raw_connection(gateway.port) as fresh:
                assert await idle.closed()
                await fresh.send(POST + b"Content-Length: %d\r\n\r\n" % len(streamed) + streamed)
                await gateway.fleet.wait_requests(2)
                answer = await ask(gateway.port, HEAD + b"\r\n")
                assert (answer.status, answer.error["code"]) == (503, "connections")
                assert answer.error["type"] == "server_error"
        await gateway.wait_idle()


async def test_partial_headers_of_all_are_bounded() -> None:
    async with running_gateway(http_max_partial_bytes=2**20) as gateway:
        held = [raw_connection(gateway.port) for _ in range(20)]
        connections = [await one.__aenter__() for one in held]
        partial = HEAD + b"X-A: " + b"a" * 60_000
        for connection in connections:
            await connection.send(partial)
        # all has arrived: what is not held was refused
        num_held = 2**20 // len(partial)
        num_refused = len(connections) - num_held
        await until(lambda: refused(gateway, "partial_headers") == num_refused)
        await until(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == num_held * len(partial))
        answers = [asyncio.create_task(connection.answer()) for connection in connections]
        await until(lambda: sum(answer.done() for answer in answers) == num_refused)
        full = [answer.result() for answer in answers if answer.done()]
        assert {(answer.status, answer.error["code"]) for answer in full} == {(503, "partial_headers")}
        assert gateway.metric("ryz_gateway_partial_header_bytes") <= 2**20
        for answer in answers:
            answer.cancel()
        await asyncio.wait(answers)
        await serves(gateway.port)
        for one in held:
            await one.__aexit__(None, None, None)
        await until(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == 0)


async def test_the_address_that_holds_most_of_the_partial_headers_gives_way() -> None:
    """One address fills the budget of partial headers; others may still send headers in two reads."""
    async with running_gateway(http_max_partial_bytes=2**20) as gateway, AsyncExitStack() as stack:
        most, some = "127.0.0.5", "127.0.0.6"
        held = []
        for number, (source, num_bytes) in enumerate([*[(most, 65_000)] * 15, (some, 65_400), (most, 8000)]):
            connection = await stack.enter_async_context(raw_connection(gateway.port, source))
            await connection.send((HEAD + b"X-A: ").ljust(num_bytes - number, b"a"))
            held.append(connection)
        full = sum(65_000 - number for number in range(15)) + 65_400 - 15 + 8000 - 16
        await until(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == full)
        for _ in range(3):
            async with raw_connection(gateway.port) as connection:
                await connection.send(POST + b"X-A: " + b"a" * 8000)
                await until(lambda: gateway.metric("ryz_gateway_partial_header_bytes") != full)
                await connection.send(b"\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
                assert (await connection.answer()).status == 200
        answer = await held[0].answer()  # largest partial header; the others stay open
        assert (answer.status, answer.error["code"]) == (503, "partial_headers")
        assert refused(gateway, "partial_headers") == 1
        for connection in held[1:]:
            await connection.send(b"\r\n\r\n")
            assert (await connection.answer()).status == 200
    assert gateway.metric("ryz_gateway_partial_header_bytes") == 0


async def test_a_tls_handshake_has_a_deadline(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue()
    async with running_gateway(http_cert=own.cert, http_key=own.key, **QUICK) as gateway:
        context = ssl.create_default_context(cafile=authority.ca)
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            async with raw_connection(gateway.port) as connection:
                await connection.send(sent)
                assert await connection.closed(3)
        async with raw_connection(gateway.port) as connection:
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await connection.closed(3)
        assert gateway.metric("ryz_gateway_closed_connections_total", reason="tls_handshake") == 2
        assert gateway.metric("ryz_gateway_closed_connections_total", reason="first_byte") == 1
        await until(lambda: gateway.metric("ryz_gateway_connections") == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
        secured = RawConnection(reader, writer)
        await secured.send(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert (await secured.answer()).status == 200
        await secured.send(HEAD + b"X-A: " + b"a" * 70_000)
        assert (await secured.answer()).status == 431
        writer.close()
