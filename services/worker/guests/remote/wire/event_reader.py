"""Reads server-sent events from the bytes of a connection, as they come.

The libraries for it decode leniently (bytes that are no UTF-8 become U+FFFD, lines end at U+2028) and hold an
event of any size in memory. Here events stay bytes, whose decoder is strict, and have a bound.
"""

from typing import NamedTuple

from services.worker.guests.remote.wire.server_error import ServerError

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event.

    Attributes:
        name: Its type; empty: a plain message.
    """

    name: bytes
    data: bytes


class EventReader:
    """The events of one connection.

    Args:
        max_bytes: Bound of one event.
    """

    __slots__ = ("_after_cr", "_data", "_line", "_max_bytes", "_name", "_size", "_started")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()  # the beginning of a line that is not complete
        self._data: list[bytes] = []  # of the event that is not complete
        self._name = b""
        self._size = 0
        self._after_cr = False
        self._started = False

    def feed(self, received: bytes) -> list[Event]:
        """Return the events that are complete with these bytes.

        Raises:
            ServerError: An event is too large.
        """
        if self._after_cr and received.startswith(b"\n"):
            received = received[1:]
        if received:
            self._after_cr = received.endswith(b"\r")
        if b"\r" in received:
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = received.split(b"\n")
        self._line += first
        events = list[Event]()
        for piece in others:
            self._end_line(events)
            self._line += piece
        self._check_size(len(self._line))
        return events

    def end(self) -> list[Event]:
        """Return the event that the end of the connection completes, if there is one.

        The standard drops it. Some servers leave out the last empty line, and what was cut is no JSON.
        """
        events = list[Event]()
        if self._line:
            self._end_line(events)
        self._end_event(events)
        return events

    def _end_line(self, events: list[Event]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            self._end_event(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value)
            self._check_size(0)
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"error":  # llama.cpp's server wrote errors so for years
            self._name = b"error"
            self._data.append(value)

    def _end_event(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(self._name, b"\n".join(self._data)))
        self._data, self._name, self._size = [], b"", 0

    def _check_size(self, line_bytes: int) -> None:
        if self._size + line_bytes > self._max_bytes:
            raise ServerError(f"sent an event of more than {self._max_bytes} bytes")
