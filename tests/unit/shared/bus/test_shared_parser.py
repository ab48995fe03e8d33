"""Data from the broker is parsed in pieces of any size. Unusual bytes of a subject stay in the subject."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from shared.bus.broker.parser import MAX_LINE, BrokerParser

WORD = st.binary(min_size=1, max_size=12).filter(lambda word: not set(word) & set(b" \t\r\n"))
MESSAGES = st.lists(
    st.tuples(
        WORD, st.integers(1, 9), st.none() | WORD, st.none() | st.binary(max_size=30), st.binary(max_size=30)
    ),
    max_size=6,
)


class Seen:
    def __init__(self) -> None:
        self.messages: list[tuple[Any, ...]] = []
        self.others: list[Any] = []

    def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.messages.append((subject, sid, reply or None, headers or None, data))

    async def _process_err(self, message: str) -> None:
        self.others.append(message)

    async def _process_ping(self) -> None:
        self.others.append("ping")

    async def _process_pong(self) -> None:
        self.others.append("pong")

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.others.append(info)


def line(subject: bytes, sid: int, reply: bytes | None, headers: bytes | None, data: bytes) -> bytes:
    words = [subject, b"%d" % sid, *([reply] if reply else [])]
    if headers:
        words += [b"%d" % len(headers), b"%d" % (len(headers) + len(data))]
        return b"HMSG " + b" ".join(words) + b"\r\n" + headers + data + b"\r\n"
    return b"MSG " + b" ".join([*words, b"%d" % len(data)]) + b"\r\n" + data + b"\r\n"


def drive(parser: BrokerParser, data: bytes) -> None:
    """Runs the parser's coroutine, whose callbacks never wait."""
    try:
        parser.parse(data).send(None)
    except StopIteration:
        return


@given(MESSAGES, st.lists(st.integers(0, 400), max_size=8))
def test_messages_are_read_as_they_were_sent_in_any_pieces(
    messages: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    seen = Seen()
    parser = BrokerParser(seen)
    data = b"PING\r\n" + b"".join(line(*message) for message in messages) + b"PONG\r\n"
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in pairwise(edges):
        drive(parser, data[start:end])
    assert seen.messages == [(*m[:3], m[3] or None, m[4]) for m in messages]
    assert seen.others == ["ping", "pong"]


def test_a_subject_with_a_vertical_tab_goes_to_its_own_subscription() -> None:
    seen = Seen()
    drive(BrokerParser(seen), b"MSG ryz.a\x0b6 1 reply\x0c7 2\r\nhi\r\n")
    assert seen.messages == [(b"ryz.a\x0b6", 1, b"reply\x0c7", None, b"hi")]


def test_other_lines() -> None:
    seen = Seen()
    drive(BrokerParser(seen), b"INFO {\"a\": 1} \r\n+OK\r\n-ERR 'Stale Connection'\r\n")
    assert seen.others == [{"a": 1}, "'stale connection'"]


@pytest.mark.parametrize(
    "data",
    [
        b"MSG a 1\r\n",
        b"MSG a b c d 1\r\n",
        b"MSG a x 1\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 99999999999999999999\r\n",
        b"HMSG a 1 x 5\r\n",
        b"HMSG a 1 6 5\r\n",
        b"HMSG 1\r\n",
        b"INFO {\r\n",
        b"HELLO\r\n",
        b"M" * (MAX_LINE + 1),
    ],
)
def test_what_cannot_be_read_breaks_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        drive(BrokerParser(Seen()), data)
