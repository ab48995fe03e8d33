"""Reads one streamed answer, over as many connections as it takes.

When a connection breaks in mid-stream, the stream is asked for again from the last complete event.
`http_api.py` makes the requests.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx

from benchmarks.lib.sse import DONE, events
from cli.console import fail

GRACE_S = 15.0  # how long the stream goes on without a reader, and how long the reader tries again
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0
PASSING = {502, 503, 504}  # statuses while a gateway stops or starts, or a proxy has none

Open = Callable[[str, str], AbstractContextManager[httpx.Response]]
Check = Callable[[httpx.Response], None]


class EventError(Exception):
    """An event is none that a gateway sends."""


@dataclass(slots=True)
class StreamPosition:
    """How far a stream was read.

    Attributes:
        stream_id: Empty when the gateway named none: it cannot be resumed.
        cut: The answer had as many tokens as it may have.
        tokens: How many the answer has, if usage was asked for; else 0.
    """

    stream_id: str = ""
    last_id: str = ""
    done: bool = False
    cut: bool = False
    tokens: int = 0


def read_answer(
    open_stream: Open, check: Check, position: StreamPosition, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the answer's text, piece by piece.

    Args:
        open_stream: Begins the stream (two empty texts), or goes on with a stream after an event.
        check: Fails for an answer that is an error.
        position: Is kept up to date.
        sleep: Waits before the next try.

    Raises:
        CommandError: The answer broke off for good.
        EventError: An event is none that a gateway sends.
        httpx.TransportError: The first connection failed.
    """
    give_up, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        before = position.last_id
        try:
            with open_stream(position.stream_id, position.last_id) as answer:
                if answer.is_error:
                    answer.read()
                if not (position.stream_id and answer.status_code in PASSING):
                    check(answer)
                    position.stream_id = answer.headers.get("X-Stream-Id", "")
                    yield from texts(answer.iter_bytes(), position)
        except httpx.TransportError:
            if not position.stream_id:
                raise
        if position.done:
            return
        now = time.monotonic()
        if position.last_id != before or not give_up:
            give_up, pause_s = now + GRACE_S, FIRST_PAUSE_S
        if not position.stream_id or now >= give_up:
            fail("The answer broke off: the connection ended before the answer did.")
        sleep(pause_s)
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)


def texts(pieces: Iterable[bytes], position: StreamPosition) -> Iterator[str]:
    """Yield the text of complete server-sent events. Fails on one with an `error`.

    Args:
        pieces: The body, as it comes.
        position: Is kept up to date.
    """
    for _, event_id, data in events((0.0, piece) for piece in pieces):
        text, error, cut, tokens = _read_event(data)
        if error:
            position.stream_id = ""  # the stream has ended, or is another caller's
            fail(f"The answer broke off: {error}")
        position.cut, position.tokens = position.cut or cut, tokens or position.tokens
        position.last_id, position.done = event_id.decode(errors="replace") or position.last_id, data == DONE
        if text:
            yield text
        if position.done:
            return


def _read_event(value: bytes) -> tuple[str, str, bool, int]:
    """Return an event's text and error, each empty if it has none, whether it says `length`, and tokens."""
    if value == DONE:
        return "", "", False, 0
    try:
        event = json.loads(value)
        if "error" in event:
            return "", str(event["error"].get("message", event["error"])), False, 0
        tokens = int((event.get("usage") or {}).get("completion_tokens") or 0)
        choices = event.get("choices", [])
        pieces = [choice.get("delta", {}).get("content") or "" for choice in choices]
        cut = any(choice.get("finish_reason") == "length" for choice in choices)
        return "".join(pieces), "", cut, tokens
    except (ValueError, TypeError, AttributeError) as error:
        raise EventError from error
