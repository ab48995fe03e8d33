"""Ambiguous and unusual requests over real sockets: framing, trailers, pipelining, upgrades."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kits.gateway.edge_requests import BODY, HEAD, POST, QUICK, refused, serves
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import ask, raw_connection
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(**QUICK) as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (b"Host: 127.0.0.1\r\nHost: evil\r\n", "ambiguous_request"),
        (b"", "ambiguous_request"),
        (b"Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n", "ambiguous_request"),
        (
            b"Host: localhost\r\nContent-Type: application/json\r\nContent-Type: text/plain\r\n",
            "ambiguous_request",
        ),
        (b"Host: localhost\r\nX-Session-Id: a\r\nX-Session-Id: b\r\n", "ambiguous_request"),
        (
            b"Host: localhost\r\nX-Session-Must-Exist: true\r\nX-Session-Must-Exist: false\r\n",
            "ambiguous_request",
        ),
        (b"Host: localhost\r\nIf-None-Match: *\r\nIf-None-Match: a\r\n", "ambiguous_request"),
        (b"Host: localhost\r\nTransfer-Encoding: gzip, chunked\r\n", "ambiguous_request"),
        (b"Host: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n", "malformed_http"),
        (b"Host: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n", "malformed_http"),
        (b"Host: localhost\r\nContent-Length: 1, 1\r\n", "malformed_http"),
        (b"Host: localhost\r\nContent-Length: +1\r\n", "malformed_http"),
        (b"Host: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n", "malformed_http"),
        (b"Host: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n", "malformed_http"),
        (b"Host: localhost\r\nTransfer-Encoding: xchunked\r\n", "ambiguous_request"),
        (
            b"Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            "malformed_http",
        ),
        (b"Host: localhost\r\nTransfer-Encoding : chunked\r\n", "malformed_http"),
        (b"Host: localhost\r\nX-A: a\r\n b\r\n", "malformed_http"),
        (b"Host: localhost\r\nX-A: a\x00b\r\n", "malformed_http"),
        (b"Host: localhost\r\nX-A: a\rb\r\n", "malformed_http"),
        (b"Host: localhost\r\nX-A: a\nX-B: b\r\n", "malformed_http"),
        (b"Host: localhost\r\nX\x00A: a\r\n", "malformed_http"),
        (b"Host: localhost\r\n: a\r\n", "malformed_http"),
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(gateway: Gateway, headers: bytes, code: str) -> None:
    seen = len(gateway.fleet.requests)
    answer = await ask(gateway.port, b"POST /v1/chat/completions HTTP/1.1\r\n" + headers + b"\r\n0\r\n\r\n")
    assert (answer.status, answer.error["code"]) == (400, code)
    assert answer.headers["connection"] == "close"
    assert len(gateway.fleet.requests) == seen


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://evil/live HTTP/1.1",
        b"GET /live HTTP/2.0",
        b"GET /l\xc3\xa4ve HTTP/1.1",
        b"GET /live#/v1/models HTTP/1.1",
        b"GET /live?a=1# HTTP/1.1",
        b"GET  /live HTTP/1.1 x",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
async def test_a_strange_first_line_is_refused(gateway: Gateway, line: bytes) -> None:
    answer = await ask(gateway.port, line + b"\r\nHost: localhost\r\n\r\n")
    assert answer.status == (505 if b" /live HTTP/2" in line else 400)
    await serves(gateway.port)


async def test_chunks_carry_little_besides_the_body(gateway: Gateway) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:20], BODY[20:]))
    assert (await ask(gateway.port, chunked + pieces + b"0\r\n\r\n")).status == 200
    assert (await ask(gateway.port, chunked + pieces + b"0\r\nX-Late: a\r\n\r\n")).status == 200
    tiny = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.ljust(100_000))
    for body in (
        b"1;" + b"a" * 300_000,  # an extension without an end
        b"0" * 300_000,
        pieces + b"0\r\nX-Late: " + b"a" * 300_000,
        pieces + b"0\r\n" + b"A:\r\n" * 60_000,
        tiny,
    ):
        answer = await ask(gateway.port, chunked + body)
        assert (answer.status, answer.error["code"]) in {(400, "chunk_overhead"), (431, "too_many_headers")}
    await serves(gateway.port)


async def test_a_trailer_is_not_taken_for_a_header(gateway: Gateway) -> None:
    """Trailers arrive after the headers were checked, so a trailer must not replace a header."""
    async with raw_connection(gateway.port) as connection:
        await connection.send(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await connection.send(b"2\r\n{}\r\n0\r\nContent-Type: application/json\r\n\r\n")
        assert (await connection.answer()).status == 415


async def test_requests_sent_ahead_are_few(gateway: Gateway) -> None:
    whole = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    async with raw_connection(gateway.port) as connection:
        await connection.send(whole * 4)
        for _ in range(4):
            assert (await connection.answer()).status == 200
    before = len(gateway.fleet.requests)
    async with raw_connection(gateway.port) as connection:
        await connection.send(whole * 2000)
        assert await connection.closed()
    assert len(gateway.fleet.requests) - before <= 9
    assert refused(gateway, "pipelined") == 1
    await gateway.wait_idle()


async def test_an_answer_under_way_is_not_broken_into(gateway: Gateway) -> None:
    """Garbage after a request closes the connection; no second answer is written into the first."""
    streamed = BODY[:-1].replace(b"demo", b"slow") + b',"stream":true}'
    async with raw_connection(gateway.port) as connection:
        await connection.send(POST + b"Content-Length: %d\r\n\r\n" % len(streamed) + streamed)
        async with asyncio.timeout(PATIENCE_S):
            seen = await connection.reader.readuntil(b"data: ")
        assert seen.startswith(b"HTTP/1.1 200")
        await connection.send(b"\x00garbage\r\n\r\n")
        rest = b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                rest = await connection.reader.read()
        except ConnectionError:
            pass
        assert b"HTTP/1.1" not in rest
    await gateway.wait_idle()


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"h2c\r\nUpgrade: x"])
async def test_the_wish_for_another_protocol_is_ignored(gateway: Gateway, protocol: bytes) -> None:
    """The JDK's client asks for HTTP/2 in its first request, also in a POST: the body must be read."""
    wanted = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQ\r\nUpgrade: " + protocol
    sized = POST + wanted + b"\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    chunked = (
        POST + wanted + b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    )
    plain = HEAD + wanted + b"\r\n\r\n"
    before = len(gateway.fleet.requests)
    async with raw_connection(gateway.port) as connection:
        for pieces in (
            [sized + BODY],
            [sized[:-2], sized[-2:] + BODY[:9], BODY[9:]],
            [chunked],
            [chunked[:-4], chunked[-4:]],
            [plain],
            [sized + BODY + chunked + plain, sized + BODY],
        ):
            for piece in pieces:
                await connection.send(piece)
                await asyncio.sleep(0.02)
            for _ in range(4 if len(pieces[0]) > 2 * len(sized) else 1):
                answer = await connection.answer()
                assert (answer.status, answer.headers.get("connection")) == (200, None)
    assert len(gateway.fleet.requests) == before + 7


async def test_a_wish_for_another_protocol_hides_no_request(gateway: Gateway) -> None:
    """The body ends where its headers say, and the bytes after it are the next request."""
    inner = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    wanted = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    async with raw_connection(gateway.port) as connection:
        for framing in (
            b"Content-Length: %d\r\n\r\n%s" % (len(inner), inner),
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner),
        ):
            await connection.send(POST + wanted + framing + HEAD + b"\r\n")
            assert (await connection.answer()).status == 400  # the body is not JSON
            assert (await connection.answer()).body == b'{"status":"live"}'
        await connection.send(POST + wanted + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await connection.answer()).error["code"] == "malformed_http"
        assert await connection.closed()
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD + wanted + b"\r\n")
        assert (await connection.answer()).status == 200
        await connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await connection.answer()).status == 400
        assert await connection.closed()


@pytest.mark.parametrize("wanted", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_nothing_behind_connect_is_read(gateway: Gateway, wanted: bytes) -> None:
    async with raw_connection(gateway.port) as connection:
        head = b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + wanted
        await connection.send(head + b"\r\n" + HEAD + b"\r\n")
        assert (await connection.answer()).status == 400
        assert await connection.reader.read() == b""
