"""The head of a response and its body leave in one write."""

import asyncio
from typing import cast

from shared.web.joined_head import JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class WrittenTransport:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return name


def make() -> tuple[WrittenTransport, JoinedHead]:
    transport = WrittenTransport()
    return transport, JoinedHead(cast(asyncio.Transport, transport), asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write() -> None:
    transport, joined = make()
    joined.write(HEAD)
    assert transport.written == []
    joined.write(b"body")
    assert transport.written == [HEAD + b"body"]
    await asyncio.sleep(0)
    joined.write(b"more")
    assert transport.written == [HEAD + b"body", b"more"]


async def test_a_head_alone_leaves_in_the_next_round_of_the_loop() -> None:
    transport, joined = make()
    joined.write(HEAD)
    await asyncio.sleep(0)
    assert transport.written == [HEAD]
    joined.write(b"body")
    assert transport.written == [HEAD, b"body"]


async def test_a_head_leaves_before_the_connection_is_closed_and_not_after() -> None:
    transport, joined = make()
    joined.write(HEAD)
    joined.close()
    assert (transport.written, transport.closed) == ([HEAD], True)
    joined.write(HEAD)
    await asyncio.sleep(0)
    assert transport.written == [HEAD]


async def test_large_bodies_are_not_copied_and_the_word_to_go_on_is_not_kept() -> None:
    transport, joined = make()
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    joined.write(HEAD)
    body = bytes(65_536)
    joined.write(body)
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n", HEAD, body]
    assert transport.written[2] is body
    assert joined.get_extra_info("peername") == "peername"
