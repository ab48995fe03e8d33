"""Limits on the head of a request and on unread bodies, over real sockets: sizes, counts, deadlines."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kits.gateway.edge_requests import HEAD, QUICK, refused, serves
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import RawConnection, ask, raw_connection
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(**QUICK) as running:
        yield running


async def _drip(connection: RawConnection, data: bytes) -> None:
    while True:
        for at in range(len(data)):
            await connection.send(data[at : at + 1])
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (HEAD + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (
            HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(70)) + b"\r\n",
            431,
            "headers_too_large",
        ),
        (HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(100)) + b"\r\n", 431, "too_many_headers"),
        (HEAD + b"A:\r\n" * 30_000 + b"\r\n", 431, "too_many_headers"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "uri_too_long"),
        (b"GET /?" + b"a" * 200_000, 414, "uri_too_long"),
        (HEAD + b"X-A" + b"a" * 200_000, 431, "headers_too_large"),
        (HEAD + b"X-A: " + b" " * 200_000, 431, "headers_too_large"),
    ],
)
async def test_headers_have_limits(gateway: Gateway, request_bytes: bytes, status: int, code: str) -> None:
    before = refused(gateway, code)
    answer = await ask(gateway.port, request_bytes)
    assert (answer.status, answer.headers["x-ryz-reason"]) == (status, code)
    assert (answer.error["code"], answer.error["type"]) == (code, "invalid_request_error")
    assert " may have " in answer.error["message"]
    assert refused(gateway, code) == before + 1
    await serves(gateway.port)


async def test_what_is_within_the_limits_is_served(gateway: Gateway) -> None:
    many = b"".join(b"X-%d: a\r\n" % n for n in range(99))
    assert (await ask(gateway.port, HEAD + many + b"\r\n")).status == 200
    large = b"X-A: " + b"a" * 65_000 + b"\r\n"
    assert (await ask(gateway.port, HEAD + large + b"\r\n")).status == 200
    assert (await ask(gateway.port, b"GET /live?" + b"a" * 8000 + b" HTTP/1.0\r\n\r\n")).status == 200


async def test_an_endless_header_is_not_buffered(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD + b"X-A: ")
        sent = 0
        while sent < 200_000_000 and not connection.writer.is_closing():
            await connection.send(b"a" * 65_536)
            sent += 65_536
            await asyncio.sleep(0)
        assert sent < 20_000_000
    await until(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == 0)


async def test_headers_that_come_slowly_get_a_408(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        began_s = time.monotonic()
        await connection.send(HEAD)
        drip = asyncio.create_task(_drip(connection, b"X-A: a\r\n"))
        answer = await connection.answer()
        drip.cancel()
    assert (answer.status, answer.error["code"]) == (408, "headers_timeout")
    assert time.monotonic() - began_s > 0.3
    await serves(gateway.port)


async def test_headers_have_their_own_time_from_their_first_byte() -> None:
    """The deadline also applies when the first byte arrives together with the end of the previous request."""
    limit_s = 1.5
    async with (
        running_gateway(**QUICK | {"http_headers_s": limit_s, "keep_alive_s": 30}) as gateway,
        raw_connection(gateway.port) as connection,
    ):
        await connection.send(HEAD)
        for _ in range(3):
            await asyncio.sleep(0.4 * limit_s)  # 1.2 times the limit in all
            await connection.send(b"\r\n" + HEAD)
            assert (await connection.answer()).status == 200
        answer = await connection.answer()
    assert (answer.status, answer.error["code"]) == (408, "headers_timeout")


@pytest.mark.parametrize("drip", [b"", b"\r\n"], ids=["nothing", "empty lines"])
async def test_a_connection_without_a_request_is_closed(gateway: Gateway, drip: bytes) -> None:
    before = gateway.metric("ryz_gateway_closed_connections_total", reason="first_byte")
    async with raw_connection(gateway.port) as connection:
        dripping = asyncio.create_task(_drip(connection, drip)) if drip else None
        assert await connection.closed(3)
        if dripping:
            dripping.cancel()
    assert gateway.metric("ryz_gateway_closed_connections_total", reason="first_byte") == before + 1


async def test_empty_lines_do_not_keep_an_idle_connection_open(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD + b"\r\n")
        assert (await connection.answer()).status == 200
        dripping = asyncio.create_task(_drip(connection, b"\r\n"))
        assert await connection.closed(4)
        dripping.cancel()


async def test_a_body_that_goes_on_after_the_answer_ends_the_connection(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        await connection.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert (await connection.answer()).status == 404
        dripping = asyncio.create_task(_drip(connection, b"x"))
        assert await connection.closed(3)
        dripping.cancel()


async def test_a_body_that_goes_on_after_the_answer_is_not_read_at_any_speed() -> None:
    """The client gets its answer and may send about 1 MiB more before the connection closes, at any speed."""
    async with running_gateway(api_keys="key-of-acme:acme", http_unread_s=60) as gateway:
        length, chunked = b"Content-Length: 64000000", b"Transfer-Encoding: chunked"
        chunks = b"100\r\n%s\r\n" % (b"x" * 256)
        for path, status, framing, piece in (
            (b"/v1/chat/completions", 401, length, b"x" * 65_536),
            (b"/v1/sessions/import", 401, length, b"x" * 65_536),
            (b"/none", 404, length, b"x" * 65_536),
            (b"/v1/chat/completions", 401, chunked, chunks * 256),
        ):
            head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            before = gateway.metric("ryz_gateway_closed_connections_total", reason="unread")
            async with raw_connection(gateway.port) as connection:
                await connection.send(head + framing + b"\r\n\r\n")
                assert (await connection.answer()).status == status
                await connection.send(piece * 14)
                assert gateway.metric("ryz_gateway_closed_connections_total", reason="unread") == before
                for _ in range(900):
                    await connection.send(piece)
                assert await connection.closed(3)
            assert gateway.metric("ryz_gateway_closed_connections_total", reason="unread") == before + 1


async def test_a_short_rest_of_a_body_costs_no_connection(gateway: Gateway) -> None:
    """The limit applies per request: a client with a wrong key may send many bodies on one connection."""
    async with raw_connection(gateway.port) as connection:
        for _ in range(4):
            await connection.send(b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n")
            assert (await connection.answer()).status == 404
            await connection.send(b"x" * 500_000)


async def test_a_half_closed_connection_is_closed(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD)
        connection.writer.write_eof()
        assert await connection.closed(0.3)
