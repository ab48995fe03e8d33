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
_MESSAGE_KINDS = (b"MSG", b"HMSG")
_DIGITS = 10  # of a size or the number of a subscription
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
        """Takes input, and passes the listener all that is complete. Raises `ProtocolError`."""
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
        """Takes input, passes the listener its messages, and returns its control lines unread.

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
        """Passes the listener messages, up to the first control line; the input after it is in `_rest`.

        Returns:
            The control line, or None if there is none yet.
        """
        at, end, deliver = 0, len(data), self._reader.deliver
        message, self._message = self._message, None
        while True:
            if message is None:
                line_end = data.find(_END, at)
                if line_end < 0:
                    if end - at > MAX_LINE:
                        raise ProtocolError("nats: a line without end")
                    self._rest = bytearray(data[at:])
                    return None
                words = data[at:line_end].split(b" ")
                if words[0] not in _MESSAGE_KINDS:
                    self._rest = bytearray(data[line_end + 2 :])
                    return data[at:line_end]
                message = _message_of(words)
                at = line_end + 2
            subject, sid, reply, header, size = message
            after = at + size + 2
            if after > end:
                self._message = message
                self._rest, self._needed = bytearray(data[at:]), size + 2
                return None
            message = None
            body = at + header
            deliver(sid, subject, reply, data[body : after - 2], data[at:body] if header else b"")
            at = after

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


def _message_of(words: list[bytes]) -> tuple[bytes, int, bytes, int, int]:
    """Returns subject, subscription, reply, size of headers and whole size from the line before a message."""
    header = 0
    if words[0] == b"HMSG":
        header_size = words.pop(-2) if len(words) > 4 else b""
        if not header_size.isdigit() or len(header_size) > _DIGITS:
            raise ProtocolError(_UNREADABLE)
        header = int(header_size)
    if len(words) == 5:
        _, subject, sid, reply, size = words
    elif len(words) == 4:
        (_, subject, sid, size), reply = words, b""
    else:
        raise ProtocolError(_UNREADABLE)
    if not (sid.isdigit() and size.isdigit()) or len(sid) > _DIGITS or len(size) > _DIGITS:
        raise ProtocolError(_UNREADABLE)
    num_bytes = int(size)
    if header > num_bytes:
        raise ProtocolError(_UNREADABLE)
    return subject, int(sid), reply, header, num_bytes


def parse_headers(raw: bytes) -> tuple[dict[str, str], str]:
    """Returns the headers, and the broker's status code, which is empty in messages of clients.

    Headers that cannot be sent on as they came (with control characters, or bytes that are no text) are left
    out. A message with more than `MAX_HEADER_BYTES` of headers has none.
    """
    text = raw[:MAX_HEADER_BYTES].decode("utf-8", "replace")
    first, *lines = text.split("\r\n")
    headers = {}
    if len(raw) <= MAX_HEADER_BYTES:
        all_sendable = _is_sendable("".join(lines))
        for line in lines:
            name, colon, value = line.partition(":")
            if colon and (all_sendable or _is_sendable(line)):
                headers[name.strip()] = value.strip()
    return headers, "" if first == "NATS/1.0" else first.removeprefix("NATS/1.0").strip()[:3]


def _is_sendable(text: str) -> bool:
    return text.isprintable() and "\ufffd" not in text
