"""A TCP proxy in front of a real server that can delay bytes, cut connections or stall them."""

import asyncio
import ssl
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024
_END_S = 2.0


class TcpProxy:
    """Forwards bytes in both directions between a free port of 127.0.0.1 and a server.

    Args:
        port: Port of the server.
        host: Host of the server.
        tls: TLS context for the clients' side; the server's side is plain TCP.

    Attributes:
        delay_s: Delay of each chunk, in each direction; a change applies from the next chunk on.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = 0.0
        self.port = 0
        self._target = host, port
        self._tls = tls
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.resume()
        self._refusing = True
        for writer in tuple(self._writers):
            writer.transport.abort()  # what it could not send yet would keep it open
        if self._serving:
            await asyncio.wait(self._serving, timeout=_END_S)
        await asyncio.sleep(0)  # connections are closed in the next round of the loop

    def stall(self) -> None:
        """Keeps connections open and forwards nothing until `resume`."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forwards bytes and accepts connections again."""
        self._refusing = False
        self._flowing.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Closes all connections; with `refuse`, closes new ones as well until `resume`."""
        self._refusing = refuse
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass_up(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}
            self._serving.discard(task)

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards what clients send."""
        await self._pass(reader, writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
