"""WebSocket connections: an HTTP connection becomes one and keeps its place in the gate.

uvicorn's protocol does the work: it reads one message at a time, bounds its size and pings the other side.
"""

import functools
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from shared.web.admitted_connection import AdmittedConnection


class HeldWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket connection.

    Args:
        on_lost: Called when the connection is gone.
        options: Options of uvicorn's protocol.
    """

    def __init__(self, *, on_lost: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_lost = on_lost
        self._pong = b""  # to the last ping of a client that does not read
        self._message = bytearray()  # the frames so far of one that comes in several

    def handle_ping(self) -> None:
        """Called by uvicorn's protocol; a client that does not read gets an answer to its last ping only.

        RFC 6455, 5.5.3, allows that; answers to all of them would wait in memory without a bound.
        """
        if self.writable.is_set():
            super().handle_ping()
        elif answers := self.conn.data_to_send():
            self._pong = answers[-1]

    def resume_writing(self) -> None:
        """Called by the transport."""
        super().resume_writing()
        if self._pong and not self.transport.is_closing():
            self.transport.write(self._pong)
        self._pong = b""

    def handle_cont(self, event: Frame) -> None:
        """Called by uvicorn's protocol; frames are joined as they come, since each may be empty or a byte."""
        if self.frames:  # the first of the message
            self._message = bytearray(self.frames.pop())
        self._message += event.data
        if event.fin:
            self.frames = [bytes(self._message)]
            self._message = bytearray()
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Called by uvicorn's protocol for a whole message; uvicorn would log a wrong one as an error."""
        if self.curr_msg_data_type == "text":
            self.frames = [b"".join(self.frames)]
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Called by the application."""
        await super().send(message)
        if self.close_sent:  # uvicorn would log a refusal by an HTTP answer as an error of the application
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport."""
        super().connection_lost(exc)
        self._on_lost()


class UpgradableConnection(AdmittedConnection):
    """A connection that may become a WebSocket with its first request.

    Args:
        web_sockets: The paths at which it may.
        options: See `AdmittedConnection`.
    """

    def __init__(self, *, web_sockets: frozenset[bytes] = frozenset(), **options: Any) -> None:
        super().__init__(**options)
        self._web_sockets = web_sockets

    def becomes_web_socket(self) -> bool:
        """Returns whether the request that has just come makes this connection a WebSocket."""
        headers = [(name, value.lower()) for name, value in self.scope["headers"]]
        return (
            self.url.partition(b"?")[0] in self._web_sockets
            and self.parser.get_method() == b"GET"
            and (b"upgrade", b"websocket") in headers
            and self.cycle is None  # nothing was asked on this connection before
        )

    def begin_web_socket(self) -> None:
        """Hands the transport to another protocol; the connection keeps its place until it is lost."""
        self._over = True
        self._hold_headers(0)
        self._wait_for(None)
        protocol = functools.partial(HeldWebSocket, on_lost=self._web_socket_lost)
        self.ws_protocol_class = protocol  # type: ignore[assignment]
        self.handle_websocket_upgrade()

    def _web_socket_lost(self) -> None:
        self._gate.release(self)
        self._mark_gone()


def web_socket_options(paths: frozenset[bytes], max_message_bytes: int) -> dict[str, Any]:
    """Options of `http_server` for a server that takes WebSockets at these paths.

    Args:
        paths: The paths, as they are sent.
        max_message_bytes: Size of the largest message.
    """
    return {
        "web_sockets": paths,
        "ws": HeldWebSocket,
        "ws_max_size": max_message_bytes,
        "ws_per_message_deflate": False,  # a small message could become a large one
    }
