"""uvicorn's HTTP/1.1 protocol within the limits of a `Gate`.

uvicorn bounds the buffer of a body and the time between requests. This adds bounds of what comes before: size
and time of headers, requests that are sent ahead, and the framing of bodies. A refused request gets an answer
in OpenAI's error shape, and its connection ends.
"""

import socket
import ssl
from contextlib import suppress
from typing import Any, Self

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shared.web import faults
from shared.web.admitted_connection import CONNECTION
from shared.web.faults import Fault
from shared.web.gate import Gate
from shared.web.waiting_lines import Waiting
from shared.web.web_socket import UpgradableConnection

_GONE = frozenset({7, 8})  # TCP_CLOSE, TCP_CLOSE_WAIT of Linux: after a reset, after the other side's end
_PIECE = 16 * 1024  # bytes that are parsed between two checks of the limits
_LINGER_BYTES = 1024 * 1024  # discarded after an early answer, so that the client sees the answer


class _RefusedError(Exception):
    """Stops the parser; the protocol holds the reason."""


class LimitedProtocol(UpgradableConnection):
    """One connection and its requests, which find it in their scope under `CONNECTION`."""

    def __init__(self, *, gate: Gate, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(gate=gate, tls=tls, **options)
        self._fault: Fault | None = None
        self._in_message = False
        self._in_headers = False
        self._num_messages = 0
        self._awaited = 0  # number of the message whose headers have a deadline
        self._body_bytes = 0
        self._framing_bytes = 0  # bytes of the transfer of the body, without the body
        self._framing_run = 0  # the same since the last byte of the body
        self._lingered = 0  # bytes of a request that came after its answer

    @property
    def plain(self) -> Self:
        """Returns what writes ordinary answers at once."""
        return self

    @property
    def body_arrived(self) -> bool:
        """Returns whether the body of the request that is answered has come to its end."""
        return not self.cycle.more_body  # of the newest request: the others came before it

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, and checks the limits after each piece."""
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
            self._check_peer()
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
        self.parser = None  # type: ignore[assignment]  # it holds the header that has come in part

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
        self.headers = []  # trailers come here; the application has the earlier list

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
            self.flow.resume_reading()  # a long body may have paused it

    def on_response_complete(self) -> None:
        """Called when the application's answer is sent."""
        super().on_response_complete()
        if not self._over:
            self._settle()

    def _feed(self, piece: bytes) -> bool:
        """Parses a piece; returns whether the connection reads on."""
        was_body = self._in_message and not self._in_headers
        body_before, message = self._body_bytes, self._num_messages
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stop:
            if self.becomes_web_socket():
                self.begin_web_socket()
            else:
                self._restart_parser(piece[stop.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._fault or faults.MALFORMED)
        if self._over:
            return False
        if self._in_headers:
            self._hold_headers(self._held + len(piece))
            if not self._over:
                self._check_headers()
            return not self._over
        if self._held:
            self._hold_headers(0)
        if was_body and message == self._num_messages:
            self._check_framing(len(piece) - (self._body_bytes - body_before))
        return not self._over

    def _should_upgrade(self) -> bool:
        """Called by uvicorn when the parser stops after the headers; True keeps uvicorn from upgrading."""
        return self.parser.get_method() != b"CONNECT"

    def _restart_parser(self, rest: bytes) -> None:
        """Continues with a request that asks to upgrade to another protocol; a server may ignore that.

        The parser takes no body then, so a new one gets the headers without `Upgrade`. After CONNECT no HTTP
        follows in any case: the request is answered, and the connection ends.
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
        """Ends the connection, with an answer if it would be read as that of this request."""
        self._over = True
        self._hold_headers(0)
        self._gate.stats.refused_requests[fault.code] += 1
        cycle: RequestResponseCycle | None = self.cycle
        if cycle and self._in_message and not self._in_headers:
            answerable = not self.pipeline and not cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
            self._mark_gone()
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

    def _check_peer(self) -> None:
        """Ends a paused connection whose other side has closed it; the event loop does not notice that."""
        state = b"\0"
        with suppress(OSError):  # of a Unix socket
            state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if state[0] in _GONE:
            self.drop()
            return
        self._wait_for(None)
        self._settle()

    def _too_much(self) -> Fault | None:
        """The fault if the headers or trailers so far are over a limit."""
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

    def _settle(self) -> None:
        """Puts the connection where what it waits for has its deadline."""
        if self._over:
            return
        gate = self._gate
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        waiting: Waiting | None
        if self.flow.read_paused:
            waiting = gate.paused  # this side is late, not the client
        elif self._in_headers:
            waiting = gate.headers
            if self._awaited != self._num_messages:  # the headers of the last message have come
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
