"""What comes before a body, over real sockets: bytes and counts of headers, deadlines, what is ambiguous."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kits.gateway.gateway import Gateway, eventually, running_gateway
from tests.kits.gateway.raw_http import RawConnection, ask, raw_connection
from tests.kits.tls import Authority

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hello"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
QUICK: dict[str, Any] = {
    "http_first_byte_s": 0.3,
    "http_headers_s": 0.4,
    "http_unread_s": 0.3,
    "http_tls_handshake_s": 0.4,
    "keep_alive_s": 1,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(**QUICK) as running:
        yield running


async def serves(port: int) -> None:
    answer = await ask(port, POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer.status == 200, answer


def refused(gateway: Gateway, reason: str) -> float:
    return gateway.metric("ryz_gateway_refused_http_requests_total", reason=reason)


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
    assert "RYZ_HTTP_MAX" in answer.error["message"]
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
    await eventually(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == 0)


async def test_headers_that_come_slowly_get_a_408(gateway: Gateway) -> None:
    async with raw_connection(gateway.port) as connection:
        began_s = time.monotonic()
        await connection.send(HEAD)
        drip = asyncio.create_task(_drip(connection, b"X-A: a\r\n"))
        answer = await connection.answer()
        drip.cancel()
    assert (answer.status, answer.error["code"]) == (408, "headers_timeout")
    assert 0.3 < time.monotonic() - began_s < 3
    await serves(gateway.port)


async def test_headers_have_their_own_time_from_their_first_byte(gateway: Gateway) -> None:
    """Also when that came in one piece with the end of the request before."""
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD)
        for _ in range(3):
            await asyncio.sleep(0.25)
            await connection.send(b"\r\n" + HEAD)
            assert (await connection.answer()).status == 200
        answer = await connection.answer()
    assert (answer.status, answer.error["code"]) == (408, "headers_timeout")


async def _drip(connection: RawConnection, data: bytes) -> None:
    while True:
        for at in range(len(data)):
            await connection.send(data[at : at + 1])
            await asyncio.sleep(0.02)


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
    """The client gets its answer and a mebibyte to notice it, however fast it sends."""
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
    """It counts for each request: a client with a wrong key may send many bodies on one connection."""
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
        b"1;" + b"a" * 300_000,  # an extension that does not end
        b"0" * 300_000,
        pieces + b"0\r\nX-Late: " + b"a" * 300_000,
        pieces + b"0\r\n" + b"A:\r\n" * 60_000,
        tiny,
    ):
        answer = await ask(gateway.port, chunked + body)
        assert (answer.status, answer.error["code"]) in {(400, "chunk_overhead"), (431, "too_many_headers")}
    await serves(gateway.port)


async def test_a_trailer_is_not_taken_for_a_header(gateway: Gateway) -> None:
    """It comes after the checks of headers, so it must not stand in for one."""
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
    """Garbage behind a request ends the connection; it does not put a second answer into the first."""
    streamed = BODY[:-1].replace(b"demo", b"slow") + b',"stream":true}'
    async with raw_connection(gateway.port) as connection:
        await connection.send(POST + b"Content-Length: %d\r\n\r\n" % len(streamed) + streamed)
        async with asyncio.timeout(5):
            seen = await connection.reader.readuntil(b"data: ")
        assert seen.startswith(b"HTTP/1.1 200")
        await connection.send(b"\x00garbage\r\n\r\n")
        rest = b""
        try:
            async with asyncio.timeout(5):
                rest = await connection.reader.read()
        except ConnectionError:
            pass
        assert b"HTTP/1.1" not in rest
    await gateway.wait_idle()


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"h2c\r\nUpgrade: x"])
async def test_the_wish_for_another_protocol_is_ignored(gateway: Gateway, protocol: bytes) -> None:
    """JDK's client wishes for HTTP/2 with its first request, whatever that is: its body must be read."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQ\r\nUpgrade: " + protocol
    sized = POST + wish + b"\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    chunked = POST + wish + b"\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    plain = HEAD + wish + b"\r\n\r\n"
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
    """The body is as long as its headers say, and what follows it is the next request."""
    inner = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    wish = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    async with raw_connection(gateway.port) as connection:
        for framing in (
            b"Content-Length: %d\r\n\r\n%s" % (len(inner), inner),
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner),
        ):
            await connection.send(POST + wish + framing + HEAD + b"\r\n")
            assert (await connection.answer()).status == 400  # that body is not JSON
            assert (await connection.answer()).body == b'{"status":"live"}'
        await connection.send(POST + wish + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await connection.answer()).error["code"] == "malformed_http"
        assert await connection.closed()
    async with raw_connection(gateway.port) as connection:
        await connection.send(HEAD + wish + b"\r\n")
        assert (await connection.answer()).status == 200
        await connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await connection.answer()).status == 400
        assert await connection.closed()


@pytest.mark.parametrize("wish", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_nothing_behind_connect_is_read(gateway: Gateway, wish: bytes) -> None:
    async with raw_connection(gateway.port) as connection:
        head = b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + wish
        await connection.send(head + b"\r\n" + HEAD + b"\r\n")
        assert (await connection.answer()).status == 400
        assert await connection.reader.read() == b""


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
        await eventually(lambda: gateway.metric("ryz_gateway_connections") == 2)
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
        for connection in connections:
            await connection.send(HEAD + b"X-A: " + b"a" * 60_000)
        answers = await asyncio.gather(
            *(connection.answer(1.0) for connection in connections), return_exceptions=True
        )
        full = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert full
        assert {(answer.status, answer.error["code"]) for answer in full} == {(503, "partial_headers")}
        assert gateway.metric("ryz_gateway_partial_header_bytes") <= 2**20
        await serves(gateway.port)
        for one in held:
            await one.__aexit__(None, None, None)
        await eventually(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == 0)


async def test_the_address_that_holds_most_of_the_partial_headers_gives_way() -> None:
    """One address fills their bytes; the requests of others, whose headers come in two reads, are served."""
    async with running_gateway(http_max_partial_bytes=2**20) as gateway, AsyncExitStack() as stack:
        most, some = "127.0.0.5", "127.0.0.6"
        held = []
        for number, (source, num_bytes) in enumerate([*[(most, 65_000)] * 15, (some, 65_400), (most, 8000)]):
            connection = await stack.enter_async_context(raw_connection(gateway.port, source))
            await connection.send((HEAD + b"X-A: ").ljust(num_bytes - number, b"a"))
            held.append(connection)
        full = sum(65_000 - number for number in range(15)) + 65_400 - 15 + 8000 - 16
        await eventually(lambda: gateway.metric("ryz_gateway_partial_header_bytes") == full)
        for _ in range(3):
            async with raw_connection(gateway.port) as connection:
                await connection.send(POST + b"X-A: " + b"a" * 8000)
                await eventually(lambda: gateway.metric("ryz_gateway_partial_header_bytes") != full)
                await connection.send(b"\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
                assert (await connection.answer()).status == 200
        answer = await held[0].answer()  # the largest of that address; the others keep their places
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
        await eventually(lambda: gateway.metric("ryz_gateway_connections") == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
        secured = RawConnection(reader, writer)
        await secured.send(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        assert (await secured.answer()).status == 200
        await secured.send(HEAD + b"X-A: " + b"a" * 70_000)
        assert (await secured.answer()).status == 431
        writer.close()
