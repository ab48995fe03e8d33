"""Our parser of messages finds what nats-py's own parser finds, in whatever pieces a stream arrives."""

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from shared.bus.broker.parser import MAX_HEADER_BYTES, BrokerParser, parse_headers

TOKEN = st.text("abcXYZ019-_=$", min_size=1, max_size=10)
SUBJECT = st.lists(TOKEN, min_size=1, max_size=4).map(".".join)
HEADERS = st.lists(st.tuples(TOKEN, TOKEN), min_size=1, max_size=3).map(
    lambda pairs: (
        "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs) + "\r\n"
    ).encode()
)
MESSAGE = st.tuples(
    SUBJECT, st.integers(1, 99_999), st.just("") | SUBJECT, st.just(b"") | HEADERS, st.binary(max_size=200)
)
CONTROL = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow'\r\n", b'INFO {"a": 1}\r\n'])
STREAM = st.lists(MESSAGE | CONTROL, max_size=12)
Parsed = list[tuple[Any, ...]]


def encoded(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    subject, sid, reply = part[:3]
    headers, data = bytes(part[3]), bytes(part[4])
    words = [f"HMSG {subject} {sid}" if headers else f"MSG {subject} {sid}", *([reply] if reply else [])]
    words += [str(len(headers)), str(len(headers) + len(data))] if headers else [str(len(data))]
    return " ".join(words).encode() + b"\r\n" + headers + data + b"\r\n"


class Ours:
    """Keeps what `BrokerParser` tells."""

    def __init__(self) -> None:
        self.read: Parsed = []

    def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.read.append(("message", sid, subject, reply, data, headers))

    async def _process_err(self, message: str) -> None:
        self.read.append(("err", message))

    async def _process_ping(self) -> None:
        self.read.append(("ping",))

    async def _process_pong(self) -> None:
        self.read.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.read.append(("info", info))


class Theirs(Ours):
    """Keeps what nats-py's parser tells."""

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        self.read.append(("message", sid, subject, bytes(reply or b""), bytes(data), bytes(headers or b"")))


async def read_by_nats_py(pieces: list[bytes]) -> Parsed:
    theirs = Theirs()
    parser = Parser(theirs)  # type: ignore[no-untyped-call, unused-ignore]
    for piece in pieces:
        await parser.parse(piece)
    return theirs.read


async def read_by_parse(pieces: list[bytes]) -> Parsed:
    ours = Ours()
    parser = BrokerParser(ours)
    for piece in pieces:
        await parser.parse(piece)
    return ours.read


async def read_by_feed(pieces: list[bytes]) -> tuple[Parsed, Parsed]:
    """Messages, and what a second parser makes of the control lines that the first one leaves."""
    ours, rest = Ours(), Ours()
    parser, lines = BrokerParser(ours), BrokerParser(rest)
    for piece in pieces:
        await lines.parse(parser.feed(piece))
    return ours.read, rest.read


@given(STREAM, st.lists(st.integers(0, 2000), max_size=10))
def test_any_stream_in_any_pieces_is_read_as_nats_py_reads_it(stream: list[Any], cuts: list[int]) -> None:
    data = b"".join(encoded(part) for part in stream)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    expected = asyncio.run(read_by_nats_py(pieces))
    assert asyncio.run(read_by_parse(pieces)) == expected
    messages, control = asyncio.run(read_by_feed(pieces))
    assert messages == [one for one in expected if one[0] == "message"]
    assert control == [one for one in expected if one[0] != "message"]


def headers_line_by_line(raw: bytes) -> tuple[dict[str, str], str]:
    """The plain way: each line is checked by itself."""
    first, *lines = raw[:MAX_HEADER_BYTES].decode("utf-8", "replace").split("\r\n")
    headers = {}
    for line in lines if len(raw) <= MAX_HEADER_BYTES else ():
        name, colon, value = line.partition(":")
        if colon and line.isprintable() and "\ufffd" not in line:
            headers[name.strip()] = value.strip()
    return headers, first.removeprefix("NATS/1.0").strip()[:3]


LINES = st.lists(
    st.sampled_from([b"a: 1", b"b:2 ", b"c", b"", b"d: \x01", b"e: \xff", b"f: \xc3\xa9", b"a:3"])
    | st.binary(max_size=12),
    max_size=6,
)
FIRST = st.sampled_from(
    [b"NATS/1.0", b"NATS/1.0 503", b"NATS/1.0 503 No", b"503", b"", b"\xff", b"NATS/1.0 "]
)


@given(FIRST, LINES)
def test_headers_are_those_of_the_plain_way(first: bytes, lines: list[bytes]) -> None:
    raw = b"\r\n".join([first, *lines])
    assert parse_headers(raw) == headers_line_by_line(raw)


def test_headers_that_are_too_long_are_left_out() -> None:
    raw = b"NATS/1.0 503\r\na: 1\r\n" + b"x" * MAX_HEADER_BYTES
    assert parse_headers(raw) == headers_line_by_line(raw) == ({}, "503")
