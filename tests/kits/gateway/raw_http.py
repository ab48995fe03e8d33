"""Raw HTTP over sockets, for requests that no client library would send."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.kits.waiting import PATIENCE_S


@dataclass
class RawAnswer:
    """One answer, and whether the connection was closed after it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object in it."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


class RawConnection:
    """A connection that sends bytes unchanged."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Sends all bytes; ignores a connection that is already closed."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def answer(self, timeout_s: float = PATIENCE_S) -> RawAnswer:
        """The next answer.

        Raises:
            EOFError: The connection was closed before an answer.
        """
        async with asyncio.timeout(timeout_s):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise EOFError("no answer") from error
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {}
            for line in filter(None, lines):
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return RawAnswer(int(first.split()[1]), headers, body)

    async def closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the peer closes within `timeout_s`; bytes received until then are discarded."""
        try:
            async with asyncio.timeout(timeout_s):
                while await self.reader.read(65_536):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def raw_connection(
    port: int, source: str = "127.0.0.1", host: str = "127.0.0.1"
) -> AsyncIterator[RawConnection]:
    """A connection from the local address `source`."""
    reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def ask(port: int, data: bytes) -> RawAnswer:
    """Sends `data` on a new connection and returns the answer."""
    async with raw_connection(port) as connection:
        await connection.send(data)
        return await connection.answer()
