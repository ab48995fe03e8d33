"""One HTTP exchange on its own socket, which can be read slowly and closed at any point.

It distinguishes a complete answer from a broken connection; `storm_visits.py` decides what that means.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.kits.chaos.streams import Said

NARROW = 4096  # receive buffer of a slow reader, in bytes
CONNECT_S = 10.0
CONNECT_PAUSE_S = 0.2


class Unreached(Exception):
    """The connection failed or ended before the answer began."""


class Broken(Exception):
    """The connection ended before the answer did."""


class Exchange:
    """A context manager: entry sends the request and reads `status` and `headers`; exit disconnects."""

    def __init__(
        self,
        url: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        narrow: bool = False,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._where = urlsplit(url)
        self._narrow = narrow
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {self._where.netloc}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._request = "\r\n".join([*lines, "", ""]).encode() + data

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await self._connect()
        try:
            self._writer.write(self._request)
            await self._writer.drain()
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (OSError, EOFError) as error:
            self._writer.transport.abort()
            raise Unreached(repr(error)) from None
        except BaseException:
            self._writer.transport.abort()
            raise
        status, *fields = head.strip().split("\r\n")
        self.status = int(status.split(" ")[1])
        self.headers = {
            name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
        }
        return self

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects, with retries for a while; the request is not sent yet."""
        give_up = time.monotonic() + CONNECT_S
        where = str(self._where.hostname), self._where.port or 80
        while True:
            sock = socket.socket()
            sock.setblocking(False)
            if self._narrow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
            try:
                await asyncio.get_running_loop().sock_connect(sock, where)
                return await asyncio.open_connection(sock=sock, limit=NARROW if self._narrow else 2**16)
            except OSError as error:
                sock.close()
                if time.monotonic() > give_up:
                    raise Unreached(repr(error)) from None
            except BaseException:
                sock.close()
                raise
            await asyncio.sleep(CONNECT_PAUSE_S)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body in pieces as it arrives.

        Raises:
            Broken: The connection ended before the body did.
        """
        try:
            if "content-length" in self.headers:
                yield await self._reader.readexactly(int(self.headers["content-length"]))
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readuntil(b"\r\n")
        except (OSError, EOFError) as error:
            raise Broken(repr(error)) from None

    async def events(self) -> AsyncIterator[tuple[str, str]]:
        """The complete events of a stream, as id and data."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for event in whole:
                fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
                yield fields.get("id", ""), fields["data"]

    async def error(self) -> str:
        """Code and message of a refusal."""
        return in_words(json.loads(b"".join([piece async for piece in self.pieces()]))["error"])


def in_words(error: Mapping[str, Any]) -> str:
    """Code and message of an API error."""
    return f"{error.get('code') or error['type']}: {error['message']}"


async def read_on(exchange: Exchange, said: Said, *, events: int = 0, every_s: float = 0.0) -> bool:
    """Reads events into `said`.

    Args:
        exchange: The open exchange.
        said: Collects the events.
        events: Most events to read; 0 for all.
        every_s: Pause after each event.

    Returns:
        Whether the answer ended.
    """
    said.status = exchange.status
    count = 0
    async for event_id, data in exchange.events():
        if event_id:
            said.ids.append(event_id)
        said.event(data)
        count += 1
        if events and count >= events and not said.dones:
            return False
        if every_s:
            await asyncio.sleep(every_s)
    return True
