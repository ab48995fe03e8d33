"""HTTP/1.1 by hand, so that every byte of an answer can be wrong."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

EVENTS = "text/event-stream; charset=utf-8"


class CutError(Exception):
    """Ends the handling of a connection that was cut on purpose."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that was read whole."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body's object; empty if there is none."""
        value = json.loads(self.body) if self.body else {}
        assert isinstance(value, dict)
        return value


async def read_request(reader: asyncio.StreamReader, ahead: bytes) -> HttpRequest | None:
    """Reads a request, whose first bytes may have been read; None at the end of the connection."""
    try:
        head = ahead + await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpRequest(method, path, headers, body)


@dataclass(slots=True)
class Answer:
    """The answer to one request, as it is written."""

    writer: asyncio.StreamWriter
    chunked: bool = field(default=False, init=False)

    async def head(
        self,
        status: int = 200,
        content_type: str = EVENTS,
        *,
        framing: str = "chunked",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Writes the head; `framing` is `chunked`, `close`, or the length of the body."""
        lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {content_type}"]
        self.chunked = framing == "chunked"
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        elif framing == "close":
            lines.append("Connection: close")
        else:
            lines.append(f"Content-Length: {framing}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def write(self, data: bytes) -> None:
        """Writes a part of the body."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)

    async def raw(self, data: bytes) -> None:
        """Writes bytes as they are."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError as error:
            raise CutError from error

    async def end(self) -> None:
        """Ends the body; without chunks that is the end of the connection."""
        if not self.chunked:
            self.cut()
        await self.raw(b"0\r\n\r\n")

    async def whole(self, value: object, status: int = 200, *, headers: dict[str, str] | None = None) -> None:
        """Writes an answer of JSON, or of text."""
        content = value if isinstance(value, str) else json.dumps(value)
        kind = "text/plain" if isinstance(value, str) else "application/json"
        data = content.encode()
        await self.head(status, kind, framing=str(len(data)), headers=headers)
        await self.raw(data)

    def cut(self) -> None:
        """Ends the connection as the end of a process does."""
        raise CutError

    def reset(self) -> None:
        """Ends the connection with a reset."""
        found = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise CutError
