"""Parses the protocol of the broker: control lines, messages with their payload, headers.

It replaces nats-py's parser, which splits a line at any white space that Python knows. The broker splits at
spaces and tabs, and lets clients put a vertical tab or a form feed into a subject. nats-py would read such a
subject as two words, and hand its message to a subscription of the sender's choice. A line that cannot be
read, or that never ends, breaks the connection, which is then made again.
"""

import json
from typing import Any, Protocol

from nats.errors import ProtocolError

MAX_LINE = 64 * 1024  # INFO of a large cluster; a message's line has 4 KiB at most (`max_control_line`)
MAX_HEADER_BYTES = 8192
_END = b"\r\n"
_UNREADABLE = "nats: a line that cannot be read"


class ParserListener(Protocol):
    """Receives what was parsed; nats-py's client has these methods, apart from `deliver`."""

    def deliver(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Takes a message for a subscription; `reply` and `headers` are empty if it has none."""

    async def _process_err(self, message: str) -> None: ...

    async def _process_ping(self) -> None: ...

    async def _process_pong(self) -> None: ...

    async def _process_info(self, info: dict[str, Any]) -> None: ...


class BrokerParser:
    """Call `parse` with all bytes in their order, and `reset` for each new connection."""

    def __init__(self, reader: ParserListener) -> None:
        self._reader = reader
        self.reset()

    def reset(self) -> None:
        """Forgets incomplete input."""
        self._rest = bytearray()
        self._needed = 0  # so many bytes of `_rest` are needed for the next step
        self._message: tuple[bytes, int, bytes, int, int] | None = None  # subject, sid, reply, headers, size

    async def parse(self, data: bytes = b"") -> None:
        """Takes input, and tells the listener of all that is complete. Raises `ProtocolError`."""
        while True:
            if self._rest:
                self._rest += data
                if len(self._rest) < self._needed:
                    return
                data = bytes(self._rest)
            self._rest, self._needed = bytearray(), 0
            control = self._read_messages(data)
            if control is None:
                return
            data = b""  # the input after the line is in `_rest`, which `reset` empties if the connection ends
            await self._read_control(control)

    def feed(self, data: bytes) -> bytes:
        """Takes input, tells the listener of its messages, and returns its control lines unread.

        Raises `ProtocolError`. `parse` and `feed` are not called on the same parser.
        """
        lines: list[bytes] = []
        while True:
            if self._rest:
                self._rest += data
                if len(self._rest) < self._needed:
                    break
                data = bytes(self._rest)
            self._rest, self._needed = bytearray(), 0
            line = self._read_messages(data)
            if line is None:
                break
            lines.append(line)
            data = b""  # the input after the line is in `_rest`
        return b"\r\n".join([*lines, b""]) if lines else b""

    def _read_messages(self, data: bytes) -> bytes | None:
        """Tells the listener of messages, up to the first control line; the input after it is in `_rest`.

        Returns:
            The control line, or None if there is none yet.
        """
        at, end = 0, len(data)
        while True:
            if self._message is not None:
                subject, sid, reply, header, size = self._message
                after = at + size + 2
                if after > end:
                    self._rest, self._needed = bytearray(data[at:]), size + 2
                    return None
                self._message = None
                self._reader.deliver(
                    sid, subject, reply, data[at + header : after - 2], data[at : at + header]
                )
                at = after
            line_end = data.find(_END, at)
            if line_end < 0:
                if end - at > MAX_LINE:
                    raise ProtocolError("nats: a line without end")
                self._rest = bytearray(data[at:])
                return None
            line = data[at:line_end]
            at = line_end + 2
            if not line.startswith((b"MSG ", b"HMSG ")):
                self._rest = bytearray(data[at:])
                return line
            self._message = _message_of(line)

    async def _read_control(self, line: bytes) -> None:
        kind, _, rest = line.partition(b" ")
        reader = self._reader
        try:
            if kind == b"PING":
                await reader._process_ping()
            elif kind == b"PONG":
                await reader._process_pong()
            elif kind == b"INFO":
                await reader._process_info(json.loads(rest))
            elif kind == b"-ERR":
                await reader._process_err(rest.decode("utf-8", "replace").lower())
            elif kind != b"+OK":
                raise ProtocolError("nats: unknown operation")
        except ValueError as error:
            raise ProtocolError(_UNREADABLE) from error


def _message_of(line: bytes) -> tuple[bytes, int, bytes, int, int]:
    """Returns subject, subscription, reply, size of headers and whole size from the line before a message."""
    words = line.split(b" ")
    header = words.pop(-2) if words[0] == b"HMSG" else b"0"
    if len(words) == 4:
        (_, subject, sid, size), reply = words, b""
    elif len(words) == 5:
        _, subject, sid, reply, size = words
    else:
        raise ProtocolError(_UNREADABLE)
    if not (b"%b%b%b" % (sid, header, size)).isdigit() or len(size) > 10 or len(sid) > 10:
        raise ProtocolError(_UNREADABLE)
    if not (sid and header and size) or int(header) > int(size):
        raise ProtocolError(_UNREADABLE)
    return subject, int(sid), reply, int(header), int(size)


def parse_headers(raw: bytes) -> tuple[dict[str, str], str]:
    """Returns the headers, and the broker's status code, which is empty in messages of clients.

    Headers that cannot be sent on as they came (with control characters, or bytes that are no text) are left
    out. A message with more than `MAX_HEADER_BYTES` of headers has none.
    """
    first, *lines = raw[:MAX_HEADER_BYTES].decode("utf-8", "replace").split("\r\n")
    headers = {}
    for line in lines if len(raw) <= MAX_HEADER_BYTES else ():
        name, colon, value = line.partition(":")
        if colon and line.isprintable() and "\ufffd" not in line:
            headers[name.strip()] = value.strip()
    return headers, first.removeprefix("NATS/1.0").strip()[:3]
