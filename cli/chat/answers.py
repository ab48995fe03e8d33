"""One streamed answer, over as many connections as it takes.

A connection that breaks in mid-stream is no end: the stream is asked for again from the last event that came
whole. What the events mean to a person is decided here, how a gateway is reached elsewhere.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx

from cli.console import fail

GRACE_S = 15.0  # how long the stream is to go on without us, and how long we try to come back to it
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 1.0
PASSING = {502, 503, 504}  # a gateway that stops or starts, or none behind a proxy

Open = Callable[[str, str], AbstractContextManager[httpx.Response]]
Check = Callable[[httpx.Response], None]


class EventError(Exception):
    """What came is no event of a gateway's."""


@dataclass(slots=True)
class Place:
    """Where the reader is. stream_id is empty when the gateway named none, so it cannot be resumed."""

    stream_id: str = ""
    last_id: str = ""
    done: bool = False


def read_answer(
    open_stream: Open, check: Check, place: Place, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """The answer's text, piece by piece.

    Args:
        open_stream: begins the stream (two empty texts), or goes on with that one after that event.
        check: fails for an answer that is an error.
        place: is kept up to date.
        sleep: waits before it asks again.

    Raises `CommandError` when the answer breaks off for good, `EventError` for what no gateway sends, and
    what `open_stream` raises at first.
    """
    give_up, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        before = place.last_id
        try:
            with open_stream(place.stream_id, place.last_id) as answer:
                if answer.is_error:
                    answer.read()
                if not (place.stream_id and answer.status_code in PASSING):
                    check(answer)
                    place.stream_id = answer.headers.get("X-Stream-Id", "")
                    yield from texts(answer.iter_lines(), place)
        except httpx.TransportError:
            if not place.stream_id:
                raise
        if place.done:
            return
        now = time.monotonic()
        if place.last_id != before or not give_up:
            give_up, pause_s = now + GRACE_S, FIRST_PAUSE_S
        if not place.stream_id or now >= give_up:
            fail("The answer broke off: the connection ended before the answer did.")
        sleep(pause_s)
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)


def texts(lines: Iterator[str], place: Place) -> Iterator[str]:
    """The text of whole server-sent events; one that has no end yet does not count. Fails on an `error`."""
    name, value = "", ""
    for line in lines:
        field, _, rest = line.partition(":")
        if field == "id":
            name = rest.strip()
        elif field == "data":
            value = rest.strip()
        elif not line and value:
            text, error = _read_event(value)
            if error:
                place.stream_id = ""  # it is over, or somebody else's
                fail(f"The answer broke off: {error}")
            place.last_id, place.done = name or place.last_id, value == "[DONE]"
            if text:
                yield text
            if place.done:
                return
            name, value = "", ""


def _read_event(value: str) -> tuple[str, str]:
    """Its text and its error, each empty where it has none.

    Raises:
        EventError: it is no event of a gateway's.
    """
    if value == "[DONE]":
        return "", ""
    try:
        event = json.loads(value)
        if "error" in event:
            return "", str(event["error"].get("message", event["error"]))
        pieces = [choice.get("delta", {}).get("content") or "" for choice in event.get("choices", [])]
        return "".join(pieces), ""
    except (ValueError, TypeError, AttributeError) as error:
        raise EventError from error
