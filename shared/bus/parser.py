"""Reads what the broker sends: control lines, and messages with their payload.

In place of nats-py's own parser, which divides a line at any white space that Python knows. The broker
divides at spaces and tabs, and lets clients put a vertical tab or a form feed into a subject: such a subject
would be read as two words, and its message handed to a subscription of the sender's choice. A line that
cannot be read, or never ends, breaks the connection, which is then made again.
"""

import json
from typing import Any, Protocol

from nats.errors import ProtocolError

MAX_LINE = 64 * 1024  # INFO of a large cluster; a message's line has 4 KiB at most (`max_control_line`)
_END = b"\r\n"


class Reader(Protocol):
    """What is told of each thing that was read; nats-py's client has these."""

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None: ...

    async def _process_err(self, message: str) -> None: ...

    async def _process_ping(self) -> None: ...

    async def _process_pong(self) -> None: ...

    async def _process_info(self, info: dict[str, Any]) -> None: ...


class BrokerParser:
    """Call `parse` with all bytes in their order, and `reset` for each new connection."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.reset()

    def reset(self) -> None:
        """Forgets what came in part."""
        self._buffer = bytearray()
        self._message: tuple[bytes, int, bytes, int, int] | None = None  # subject, sid, reply, headers, size

    async def parse(self, data: bytes = b"") -> None:
        """Takes what came, and tells of what is complete. Raises `ProtocolError`."""
        self._buffer += data
        while True:
            if self._message is not None:
                if not await self._read_payload(*self._message):
                    return
                continue
            end = self._buffer.find(_END)
            if end < 0:
                if len(self._buffer) > MAX_LINE:
                    raise ProtocolError("nats: a line without end")
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            await self._read_line(line)

    async def _read_payload(self, subject: bytes, sid: int, reply: bytes, header: int, size: int) -> bool:
        buffer = self._buffer
        if len(buffer) < size + 2:
            return False
        headers = bytes(buffer[:header]) if header else None
        data = bytes(buffer[header:size])
        del buffer[: size + 2]
        self._message = None
        await self._reader._process_msg(sid, subject, reply, data, headers)
        return True

    async def _read_line(self, line: bytes) -> None:
        kind, _, rest = line.partition(b" ")
        reader = self._reader
        try:
            if kind == b"MSG":
                *words, size = rest.split(b" ")
                subject, sid, reply = words if len(words) == 3 else (*words, b"")
                self._message = subject, _number(sid), reply, 0, _number(size)
            elif kind == b"HMSG":
                *words, header, size = rest.split(b" ")
                subject, sid, reply = words if len(words) == 3 else (*words, b"")
                self._message = subject, _number(sid), reply, _number(header), _number(size)
            elif kind == b"PING":
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
            raise ProtocolError("nats: a line that cannot be read") from error


def _number(word: bytes) -> int:
    if not (word.isdigit() and len(word) <= 10):
        raise ValueError(word)
    return int(word)
