"""uvicorn's HTTP/1.1 protocol within the limits of a `Gate`.

uvicorn bounds the body's buffer and the time between requests. Here are the bounds of what comes before:
whether a connection is admitted, a TLS handshake's time, what headers may hold and how long they may take,
requests sent ahead, and what a body may carry besides itself. What is refused gets an answer in OpenAI's
error shape and loses its connection.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from shared.web import faults
from shared.web.faults import Fault
from shared.web.gate import Gate
from shared.web.waiting_lines import Lines, Waiting

CONNECTION = "ryz.connection"
_GONE = frozenset({7, 8})  # TCP_CLOSE, TCP_CLOSE_WAIT of Linux: after a reset, after the other side's end
_PIECE = 16 * 1024  # bytes that are parsed between two looks at the limits
_LINGER_BYTES = 1024 * 1024  # read away behind an answer that came early, so that the client sees it


class _RefusedError(Exception):
    """Leaves the parser; the protocol has the reason."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection; requests find it in their scope, under `CONNECTION`.

    gone: nobody reads what is sent from now on. on_gone: called then, once, for the request that is answered.

    Args:
        gate: the limits, and all connections of the server.
        tls: for HTTPS. The handshake begins here, after the connection was admitted.
        options: uvicorn's own.
    """

    def __init__(self, *, gate: Gate, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        self._limits = gate.limits
        self._tls = tls
        self._raw: asyncio.Transport | None = None  # while TLS is not there yet
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self.lines: Lines  # set when it is admitted
        self._waits: Waiting | None = None
        self._fault: Fault | None = None
        self._begun = False  # admitted, and TLS is there
        self._over = False  # nothing that comes now is a request
        self._in_message = False
        self._in_headers = False
        self._held = 0  # bytes of the headers that have come in part
        self._num_messages = 0
        self._awaited = 0  # the message whose headers have their deadline
        self._body_bytes = 0
        self._framing_bytes = 0  # of the body's transfer, without the body
        self._framing_run = 0  # the same since the last byte of the body
        self._lingered = 0  # bytes that came behind an answer and belong to its request
        self._answered: RequestResponseCycle | None = None
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits the connection, or answers why not."""
        peer = get_remote_addr(transport)
        fault = self._gate.admit(self, peer[0] if peer else "", self.loop.time())
        if fault is not None:
            self._over = True
            if self._tls is None:
                transport.write(faults.answer(fault))
            transport.close()
            return
        if self._tls is None:
            self._begin(transport)
            return
        self._raw = transport
        self._wait_for(self._gate.first_byte)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives everything back."""
        self._hold(0)
        self._gate.release(self)
        self._wait_for(None)
        self._over = True
        if self._begun:
            super().connection_lost(exc)
        cycle = self._answered  # uvicorn tells the newest request, behind which this may be
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._go()

    @property
    def body_arrived(self) -> bool:
        """Whether the body of the request that is answered is there, to the end."""
        return not self.cycle.more_body  # of the newest request: the others came before it

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and looks at the limits after each piece."""
        if self._over:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES and self._begun:
                self.transport.abort()
            return
        if not self._begun:
            self._receive_tls(data)
            return
        if len(data) <= _PIECE:
            self._feed(data)
        else:
            all(self._feed(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE))
        self._settle()

    def expire(self, waited_for: str) -> None:
        """See `WaitingConnection`."""
        if waited_for == "paused":
            self._look()
            return
        if waited_for == "headers":
            self._refuse(faults.SLOW_HEADERS)
            return
        if waited_for != "lingering":
            self._gate.stats.closed_connections[waited_for] += 1
        self.drop()

    def give_up_headers(self) -> None:
        """See `Holder`."""
        self._refuse(faults.PARTIAL_FULL)
        self.headers.clear()
        self.parser = None  # type: ignore[assignment]  # it has the header that has come in part

    def drop(self) -> None:
        """See `WaitingConnection`."""
        self._hold(0)
        self._gate.release(self)
        self._wait_for(None)
        self._over = True
        transport = self.transport if self._begun else self._raw
        if transport is not None:
            transport.abort()

    def shutdown(self) -> None:
        """Called when the server ends."""
        if self._waits is self._gate.lingering:
            self.drop()
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle and not cycle.response_complete and len(self.pipeline) >= self._limits.http_max_pipelined:
            self._fail(faults.too_many_pipelined(self._limits))
        self._num_messages += 1
        self._unset_keepalive_if_required()
        self._in_message = self._in_headers = True
        self._body_bytes = self._framing_bytes = self._framing_run = self._lingered = 0
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        """Called by the parser; the application begins."""
        fault = self._too_much() or faults.ambiguity(
            self.headers, self.url, self.parser.get_http_version(), self._gate.single_headers
        )
        if fault is not None:
            self._fail(fault)
        self._unset_keepalive_if_required()
        self._in_headers = False
        super().on_headers_complete()
        self.headers = []  # trailers come here; the application has the list before

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body_bytes += len(body)
        self._framing_run = 0
        cycle: RequestResponseCycle = self.cycle
        if cycle.response_complete:
            self._lingered += len(body)
            if self._lingered > _LINGER_BYTES and not self._over:
                self._gate.stats.closed_connections["unread"] += 1
                self.drop()
                return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._in_message = False
        super().on_message_complete()
        if not (self.pipeline or self._over):
            self.flow.resume_reading()  # a long body has paused it, and who reads it may not know of its end

    def on_response_complete(self) -> None:
        """Called when the application's answer is sent."""
        super().on_response_complete()
        if not self._over:
            self._settle()

    def _receive_tls(self, data: bytes) -> None:
        """The first bytes begin the handshake; what comes again before its end was sent with that."""
        if self._handshake is not None:
            self._early += data
            return
        raw, context = self._raw, self._tls
        assert raw is not None
        assert context is not None
        self._wait_for(self._gate.handshake)
        raw.pause_reading()
        self._handshake = self.loop.create_task(self._shake_hands(raw, context))
        # `start_tls` tells its protocol of the transport by `call_soon`, and resumes reading by another one.
        # What is added after its first step runs after both, and before anything is read.
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
        self._begin(secured)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._begun = True
        self._settle()

    def _feed(self, piece: bytes) -> bool:
        """Parses; says whether more may follow."""
        was_body = self._in_message and not self._in_headers
        body_before, message = self._body_bytes, self._num_messages
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stop:
            self._go_on(piece[stop.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._fault or faults.MALFORMED)
        if self._over:
            return False
        if self._in_headers:
            self._hold(self._held + len(piece))
            if not self._over:
                self._check_headers()
            return not self._over
        if self._held:
            self._hold(0)
        if was_body and message == self._num_messages:
            self._check_framing(len(piece) - (self._body_bytes - body_before))
        return not self._over

    def _should_upgrade(self) -> bool:
        """uvicorn asks when the parser stops behind the headers. True: it begins nothing, see `_go_on`."""
        return self.parser.get_method() != b"CONNECT"

    def _go_on(self, rest: bytes) -> None:
        """Reads a request on whose client would change to another protocol: a server may ignore the wish.

        The parser takes no body then, so another one gets the headers without the wish. Behind CONNECT there
        is no HTTP in any case: the request is answered, and the connection ends.
        """
        while self._should_upgrade():
            names = [name + b": " + value for name, value in self.scope["headers"] if name != b"upgrade"]
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            first = method + b" " + self.url + b" HTTP/" + version
            self._make_parser()
            try:
                self.parser.feed_data(b"\r\n".join((first, *names, b"", b"")))
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as stop:  # of the next request
                rest = rest[stop.args[0] :]
            except httptools.HttpParserError:
                self._refuse(self._fault or faults.MALFORMED)
                return
            else:
                return
        self._over = True
        self._wait_for(None)
        self.cycle.keep_alive = False

    def _make_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _check_headers(self) -> None:
        fault = self._too_much()
        if fault is None and self._held > self._limits.http_max_header_bytes:
            fault = faults.headers_too_large(self._limits)
        if fault is not None:
            self._refuse(fault)

    def _check_framing(self, framing: int) -> None:
        self._framing_bytes += framing
        self._framing_run += framing
        limit = self._limits.http_max_header_bytes
        if len(self.headers) > self._limits.http_max_headers:
            self._refuse(faults.too_many_headers(self._limits))
        elif self._framing_run > limit or self._framing_bytes > limit + self._body_bytes:
            self._refuse(faults.FRAMING)

    def _fail(self, fault: Fault) -> None:
        self._fault = fault
        raise _RefusedError

    def _refuse(self, fault: Fault) -> None:
        """Answers, where an answer would be read as that of this request, and ends the connection."""
        self._over = True
        self._hold(0)
        self._gate.stats.refused_requests[fault.code] += 1
        cycle: RequestResponseCycle | None = self.cycle
        if cycle and self._in_message and not self._in_headers:
            answerable = not self.pipeline and not cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
            self._go()
        else:
            answerable = cycle is None or cycle.response_complete
        if not answerable or self.transport.is_closing():
            self.drop()
            return
        self._unset_keepalive_if_required()
        self.transport.write(faults.answer(fault))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._wait_for(self._gate.lingering)

    def _look(self) -> None:
        """Ends a connection that has gone while it is not read from: the event loop hears nothing of that."""
        state = b"\0"
        with suppress(OSError):  # of a Unix socket
            state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if state[0] in _GONE:
            self.drop()
            return
        self._wait_for(None)
        self._settle()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _go(self) -> None:
        self.gone = True
        told, self.on_gone = self.on_gone, None
        if told is not None:
            told()

    def _too_much(self) -> Fault | None:
        """Whether what the parser has of the headers, or of trailers, is over a limit."""
        limits = self._limits
        if len(self.url) > limits.http_max_target_bytes:
            return faults.target_too_long(limits)
        if len(self.headers) > limits.http_max_headers:
            return faults.too_many_headers(limits)
        if self._held + _PIECE > limits.http_max_header_bytes:  # else it cannot be
            whole = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if whole > limits.http_max_header_bytes:
                return faults.headers_too_large(limits)
        return None

    def _hold(self, count: int) -> None:
        if count != self._held:
            self._held = count
            self._gate.hold(self, count)

    def _settle(self) -> None:
        """Puts the connection where what it waits for has its deadline."""
        if self._over:
            return
        gate = self._gate
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        waiting: Waiting | None
        if self.flow.read_paused:
            waiting = self._gate.paused  # we are late, not the client
        elif self._in_headers:
            waiting = gate.headers
            if self._awaited != self._num_messages:  # those of the last message have arrived
                self._awaited = self._num_messages
                self._wait_for(None)
        elif cycle is None:
            waiting = gate.first_byte
        elif not cycle.response_complete:
            waiting = None
        else:
            waiting = gate.unread if self._in_message else gate.idle
        if waiting is not self._waits:
            self._wait_for(waiting)

    def _wait_for(self, waiting: Waiting | None) -> None:
        if waiting is self._waits:
            return
        if self._waits is not None:
            self._waits.discard(self)
        self._waits = waiting
        if waiting is not None:
            # nothing asks since when it is idle: there the clock is not read
            waiting.add(self, 0.0 if waiting is self._gate.idle else self.loop.time())


def _hand_over(raw: asyncio.Transport, data: bytes) -> None:
    """Gives bytes that were read already to the protocol that the transport has now."""
    protocol = cast(asyncio.BufferedProtocol, raw.get_protocol())  # uvloop's is not derived from it
    while data and not raw.is_closing():
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
