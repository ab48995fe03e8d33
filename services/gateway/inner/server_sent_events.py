"""Reads server-sent events out of the pieces of a body. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

_END = b"\n\n"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event.

    Attributes:
        event_id: Empty: it has none.
        event: Its type; empty: it has none.
        data: Its lines of data, joined.
    """

    event_id: str
    event: str
    data: bytes


class EventReader:
    """Joins pieces and yields the events that are complete, as the gateway's own writers make them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Yields the events that end in this piece; comments, such as pings, are left out."""
        *whole, self._rest = (self._rest + piece).split(_END)
        for text in whole:
            event = _read(text)
            if event is not None:
                yield event


def _read(text: bytes) -> ServerSentEvent | None:
    event_id = event = b""
    data: list[bytes] = []
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"id":
            event_id = value
        elif name == b"event":
            event = value
    if not data:
        return None
    return ServerSentEvent(event_id.decode(), event.decode(), b"\n".join(data))
