"""One connection of a server before and beside its requests: admission, TLS handshake, waiting, and its end.

uvicorn's protocol begins when the connection is admitted and, for HTTPS, its handshake is done. What the
connection waits for has its deadline in the `Gate`.
"""

import asyncio
import ssl
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from shared.web import faults
from shared.web.gate import Gate
from shared.web.joined_head import JoinedHead
from shared.web.plain_writes import Headers, write_answer, write_head, write_part
from shared.web.waiting_lines import Lines, Waiting

CONNECTION = "ryz.connection"  # where a request finds its connection in its scope


class AdmittedConnection(HttpToolsProtocol):
    """A connection with a slot of a gate.

    Args:
        gate: The limits, and all connections of the server.
        tls: For HTTPS. The handshake begins here, after the connection was admitted.
        options: Options of uvicorn's protocol.

    Attributes:
        lines: The lines of its address, set by the gate when it admits the connection.
        gone: The caller is not there to read any more.
        on_gone: Called then, once; set by the request that is answered and reset at its end.
    """

    def __init__(self, *, gate: Gate, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        self._limits = gate.limits
        self._tls = tls
        self._raw: asyncio.Transport | None = None  # until TLS is there
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""  # bytes that came during the handshake
        self.lines: Lines
        self._waits: Waiting | None = None
        self._begun = False  # admitted, and TLS is there
        self._over = False  # bytes that come now belong to no request
        self._held = 0  # bytes of the headers that have come in part
        self._answered: RequestResponseCycle | None = None
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    @abstractmethod
    def expire(self, waited_for: str) -> None:
        """See `WaitingConnection`."""

    @abstractmethod
    def give_up_headers(self) -> None:
        """See `Holder`."""

    @abstractmethod
    def _settle(self) -> None:
        """Puts the connection where what it waits for has its deadline."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits the connection, or answers with the reason for refusing it."""
        peer = get_remote_addr(transport)
        fault = self._gate.admit(self, peer[0] if peer else "", self.loop.time())
        if fault is not None:
            self._over = True
            if self._tls is None:
                transport.write(faults.answer(fault))
            transport.close()
            return
        if self._tls is None:
            self._begin_http(transport)
            return
        self._raw = transport
        self._wait_for(self._gate.first_byte)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives back its slot and ends its request."""
        self._hold_headers(0)
        self._gate.release(self)
        self._wait_for(None)
        self._over = True
        if self._begun:
            super().connection_lost(exc)
        cycle = self._answered  # uvicorn has only the newest request, which may be a later one
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._mark_gone()

    def drop(self) -> None:
        """See `WaitingConnection`."""
        self._hold_headers(0)
        self._gate.release(self)
        self._wait_for(None)
        self._over = True
        transport = self.transport if self._begun else self._raw
        if transport is not None:
            transport.abort()

    def write_answer(self, send: Send, status: int, headers: Headers, body: bytes) -> bool:
        """Writes a whole answer to the request that is answered; see `plain_writes.py`."""
        cycle = self._answered
        return cycle is not None and write_answer(
            cycle, self.transport, send, status=status, headers=headers, body=body
        )

    def write_head(self, send: Send, status: int, headers: Headers) -> bool:
        """Writes the head of an answer that comes in parts; see `plain_writes.py`."""
        cycle = self._answered
        return cycle is not None and write_head(cycle, self.transport, send, status=status, headers=headers)

    def write_part(self, send: Send, part: bytes, *, more: bool) -> bool:
        """Writes the next part of the answer; see `plain_writes.py`."""
        return self._answered is not None and write_part(self._answered, send, part, more=more)

    def drop_default(self, name: bytes) -> None:
        """Leaves one of the server's own headers out of the answer, which brings it with another value."""
        cycle = self._answered
        if cycle is not None:
            cycle.default_headers = [pair for pair in cycle.default_headers if pair[0] != name]

    def shutdown(self) -> None:
        """Called when the server ends."""
        if self._waits is self._gate.lingering:
            self.drop()
        else:
            super().shutdown()

    def _begin_http(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._begun = True
        self._settle()

    def _receive_tls(self, data: bytes) -> None:
        """Begins the handshake with the first bytes; keeps bytes that come before its end."""
        if self._handshake is not None:
            self._early += data
            return
        raw, context = self._raw, self._tls
        assert raw is not None
        assert context is not None
        self._wait_for(self._gate.handshake)
        raw.pause_reading()
        self._handshake = self.loop.create_task(self._shake_hands(raw, context))
        # `start_tls` passes the transport to its protocol by `call_soon`, and resumes reading by another one.
        # A callback that is added after its first step runs after both, and before anything is read.
        self.loop.call_soon(self.loop.call_soon, _hand_over, raw, data)

    async def _shake_hands(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        limit_s = self._limits.http_tls_handshake_s
        try:
            secured = await self.loop.start_tls(
                raw,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=limit_s,
                ssl_shutdown_timeout=limit_s,
            )
        except OSError:
            if not self._over:
                self._gate.stats.closed_connections["tls_handshake"] += 1
                self.drop()
            return
        if secured is None or self._over:  # None: the connection was lost meanwhile
            if secured is not None:
                secured.abort()
            self.drop()
            return
        self._begin_http(secured)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        cycle.transport = JoinedHead(cycle.transport, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def _mark_gone(self) -> None:
        self.gone = True
        callback, self.on_gone = self.on_gone, None
        if callback is not None:
            callback()

    def _hold_headers(self, count: int) -> None:
        if count != self._held:
            self._held = count
            self._gate.hold(self, count)

    def _wait_for(self, waiting: Waiting | None) -> None:
        if waiting is self._waits:
            return
        if self._waits is not None:
            self._waits.discard(self)
        self._waits = waiting
        if waiting is not None:
            # nothing reads since when it is idle: the clock is not asked
            waiting.add(self, 0.0 if waiting is self._gate.idle else self.loop.time())


def _hand_over(raw: asyncio.Transport, data: bytes) -> None:
    """Passes bytes that were read already to the protocol that the transport has now."""
    protocol = cast(asyncio.BufferedProtocol, raw.get_protocol())  # uvloop's is not derived from it
    while data and not raw.is_closing():
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
