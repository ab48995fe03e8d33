"""A proxy in front of a guest's server: what groups asked and what came back, and cuts of all connections.

It keeps its port while the server behind it ends and starts. Groups use a connection for each request.
An answer can be held in the middle, so that a fault finds it unfinished however slow the machine is.
"""

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

_CHUNK_BYTES = 64 * 1024
_EVENT = b"data: {"
_END_S = 5.0


@dataclass(slots=True, eq=False)
class Exchange:
    """The bytes of one connection, as far as they were passed on.

    Attributes:
        at: When it came, on the monotonic clock.
    """

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    at: float = field(default_factory=time.monotonic)

    @property
    def request(self) -> dict[str, Any]:
        """The body of a completion's request; empty for any other."""
        head, _, body = bytes(self.sent).partition(b"\r\n\r\n")
        if not head.startswith((b"POST /completion", b"POST /v1/completions")):
            return {}
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError:
            return {}  # it was cut
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the answer that are whole, without the last one that names no object."""
        _, _, body = bytes(self.received).partition(b"\r\n\r\n")
        found = []
        for line in _joined(body).split(b"\n")[:-1]:
            if line.startswith(_EVENT):
                with suppress(ValueError):  # cut within
                    found.append(json.loads(line.removeprefix(b"data: ")))
        return found


def _joined(body: bytes) -> bytes:
    """A chunked body without its chunks' sizes, as far as it came."""
    whole = bytearray()
    while body:
        size, found, body = body.partition(b"\r\n")
        if not found or not size:
            break
        length = int(size, 16)
        whole += body[:length]
        body = body[length + 2 :]
    return bytes(whole)


@dataclass(slots=True)
class _Hold:
    """Where answers are held.

    Attributes:
        events: That are passed on, with `more` bytes behind them.
        reached: An answer is held.
        over: Held answers are to be closed without their rest.
    """

    events: int
    more: int
    reached: threading.Event = field(default_factory=threading.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def first_bytes(self, received: bytes) -> int:
        """How many bytes of an answer are passed on."""
        end = 0
        for _ in range(self.events + 1):
            end = received.find(_EVENT, end) + 1
            if not end:
                return len(received)
        return end - 1 + self.more


class RecordingProxy:
    """See the module. It has an event loop and a thread of its own, and serves while the block is open.

    Attributes:
        target: The port of the server.
        exchanges: In the order in which their connections came.
    """

    def __init__(self) -> None:
        self.target = 0
        self.port = 0
        self.exchanges: list[Exchange] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._hold: _Hold | None = None

    def cut(self) -> None:
        """Breaks off all connections."""
        self._do(self._cut())

    def hold(self, events: int, more: int) -> None:
        """Holds each answer until `let_go`, behind this many events and bytes of the next one."""
        self._hold = _Hold(events, more)

    @property
    def holds(self) -> bool:
        """Whether an answer is held."""
        return self._hold is not None and self._hold.reached.is_set()

    def let_go(self) -> None:
        """Closes answers that are held, and holds no more."""
        self._do(self._let_go())

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_END_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.over.set()
        self._hold = None

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._let_go()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        self._tasks.add(own)
        exchange = Exchange()
        self.exchanges.append(exchange)
        far: asyncio.StreamWriter | None = None
        try:
            with suppress(OSError):
                far_reader, far = await asyncio.open_connection("127.0.0.1", self.target)
                self._writers |= {writer, far}
                await asyncio.gather(
                    _pass(reader, far, exchange.sent),
                    _pass(far_reader, writer, exchange.received, self._hold),
                )
        finally:
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    one.close()
            self._tasks.discard(own)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray, hold: _Hold | None = None
) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            most = len(kept) + len(data)
            end = most if hold is None else min(most, hold.first_bytes(bytes(kept + data)))
            data = data[: max(0, end - len(kept))]
            kept += data
            writer.write(data)
            await writer.drain()
            if hold is not None and end < most:
                hold.reached.set()
                await hold.over.wait()
                break
    writer.close()
