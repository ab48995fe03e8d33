"""Answers that are written by plain calls have the bytes and the effects of uvicorn's messages."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shared.web.joined_head import JoinedHead
from shared.web.plain_writes import Headers, write_answer, write_head, write_part

HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"content-length", b"4"),
    (b"x-session-id", b"my-cat"),
]
DEFAULTS = [(b"cache-control", b"no-store")]
LOG = logging.getLogger(__name__)


class Written:
    """A request, and what its answer has done."""

    def __init__(self, *, method: str = "POST", keep_alive: bool = True, expect: bool = False) -> None:
        self.data = b""
        self.closed = False
        self.completed = 0
        self.transport = cast(asyncio.Transport, self)
        self.event = asyncio.Event()
        self.flow = FlowControl(self.transport)
        self.cycle = RequestResponseCycle(
            scope=cast(Any, {"type": "http", "method": method}),
            transport=cast(asyncio.Transport, JoinedHead(self.transport, asyncio.get_running_loop())),
            flow=self.flow,
            logger=LOG,
            access_logger=LOG,
            access_log=False,
            default_headers=DEFAULTS,
            message_event=self.event,
            expect_100_continue=expect,
            keep_alive=keep_alive,
            on_response=self.complete,
        )

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def complete(self) -> None:
        self.completed += 1

    def at_once(self, send: Any = None, headers: Headers = HEADERS) -> bool:
        send = send or self.send
        return write_answer(self.cycle, self.transport, send, status=404, headers=headers, body=b"body")

    async def by_messages(self) -> None:
        await self.cycle.send({"type": "http.response.start", "status": 404, "headers": HEADERS})
        await self.cycle.send({"type": "http.response.body", "body": b"body", "more_body": False})

    @property
    def send(self) -> Any:
        """The server's own way to send; another object each time, as in a server."""
        return self.cycle.send

    @property
    def effects(self) -> tuple[object, ...]:
        cycle = self.cycle
        return (
            *(self.data, self.closed, self.completed, self.event.is_set(), cycle.keep_alive),
            *(cycle.response_started, cycle.response_complete, cycle.waiting_for_100_continue),
        )


@pytest.mark.parametrize("expect", [False, True])
async def test_bytes_and_effects_are_those_of_messages(*, expect: bool) -> None:
    one, other = Written(expect=expect), Written(expect=expect)
    assert one.at_once()
    await other.by_messages()
    assert one.effects == other.effects
    assert one.data.startswith(b"HTTP/1.1 404 Not Found\r\ncache-control: no-store\r\n")
    with pytest.raises(RuntimeError, match="already completed"):
        await one.by_messages()


def _paused(written: Written) -> None:
    written.flow.write_paused = True


def _left(written: Written) -> None:
    written.cycle.disconnected = True


def _begun(written: Written) -> None:
    written.cycle.response_started = True


@pytest.mark.parametrize("happened", [_paused, _left, _begun, Written.close])
async def test_nothing_is_written_when_something_has_happened(happened: Callable[[Written], None]) -> None:
    written = Written()
    happened(written)
    before = written.effects
    assert not written.at_once()
    assert written.effects == before


@pytest.mark.parametrize(
    "more", [(b"connection", b"close"), (b"x-session-id", b"a\r\nx-other: b"), (b"x", b"\x00")]
)
async def test_other_headers_are_left_to_messages(more: tuple[bytes, bytes]) -> None:
    written = Written()
    assert not written.at_once(headers=[*HEADERS, more])
    assert written.data == b""


async def test_other_requests_are_left_to_messages() -> None:
    assert not Written(method="HEAD").at_once()
    assert not Written(keep_alive=False).at_once()

    async def wrapped(message: Message) -> None:
        pass

    assert not Written().at_once(send=wrapped)
    assert not Written().at_once(send=Written().send)


PARTS = [b"one", b"x" * 300, b"end"]
STREAM_HEADERS: Headers = [(b"content-type", b"text/event-stream")]


async def test_parts_are_those_of_messages() -> None:
    one, other = Written(), Written()
    assert write_head(one.cycle, one.transport, one.send, status=200, headers=STREAM_HEADERS)
    await other.cycle.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    assert one.effects == other.effects
    for part in PARTS:
        more = part != PARTS[-1]
        assert write_part(one.cycle, one.send, part, more=more)
        await other.cycle.send({"type": "http.response.body", "body": part, "more_body": more})
        assert one.effects == other.effects
    assert one.data.endswith(b"3\r\nend\r\n0\r\n\r\n")
    assert not write_part(one.cycle, one.send, b"more", more=True)


@pytest.mark.parametrize("happened", [_paused, _left])
async def test_no_part_is_written_when_something_has_happened(happened: Callable[[Written], None]) -> None:
    written = Written()
    assert not write_part(written.cycle, written.send, b"one", more=True)  # without a head
    assert write_head(written.cycle, written.transport, written.send, status=200, headers=STREAM_HEADERS)
    assert not write_part(written.cycle, written.send, b"", more=False)
    assert not write_part(written.cycle, Written().send, b"one", more=True)
    happened(written)
    assert not write_part(written.cycle, written.send, b"one", more=False)
    assert not written.cycle.response_complete
