"""WebSocket connections: an HTTP connection becomes one and keeps its slot in the gate.

uvicorn's protocol does the work: it reads one message at a time, bounds its size and pings the other side.
"""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from shared.web.admitted_connection import CONNECTION, AdmittedConnection

TRY_AGAIN_LATER = 1013  # code of a close frame
_EVICT_S = 1.0  # for the close frame of a connection that is closed for another


class HeldWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket connection.

    Args:
        connection: Its slot in the gate, which the application finds in its scope under `CONNECTION`.
        options: Options of uvicorn's protocol.
    """

    def __init__(self, *, connection: "UpgradableConnection", **options: Any) -> None:
        super().__init__(**options)
        self._connection = connection
        self._pong = b""  # to the last ping of a client that does not read
        self._message = bytearray()  # the frames so far of one that comes in several

    def handle_connect(self, event: Request) -> None:
        """Called by uvicorn's protocol with the client's request; the application begins later."""
        super().handle_connect(event)
        if not self.close_sent:
            self.scope[CONNECTION] = self._connection  # type: ignore[literal-required]

    def evict(self) -> None:
        """Ends at once, since another connection gets its slot; the client gets a close frame if it reads."""
        if self.transport.is_closing():
            return
        if not self.handshake_complete or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        if not self.close_sent:
            self.conn.send_close(TRY_AGAIN_LATER, "idle, and its place was needed")
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()
        self.loop.call_later(_EVICT_S, self.transport.abort)

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
        self._connection.web_socket_lost()


class UpgradableConnection(AdmittedConnection):
    """A connection that may become a WebSocket with its first request.

    Args:
        web_sockets: The paths at which it may.
        options: See `AdmittedConnection`.
    """

    def __init__(self, *, web_sockets: frozenset[bytes] = frozenset(), **options: Any) -> None:
        super().__init__(**options)
        self._web_sockets = web_sockets
        self._web_socket: HeldWebSocket | None = None
        self._requests = 0  # under way on the WebSocket

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
        """Hands the transport to another protocol; the connection keeps its slot until it is lost.

        Until its application says that a request has begun, it may be closed for another.
        """
        self._over = True
        self._hold_headers(0)
        self._wait_for(self._gate.socket)
        self.ws_protocol_class = self._make_web_socket  # type: ignore[assignment]
        self.handle_websocket_upgrade()

    def begin_request(self) -> None:
        """Called by the application of a WebSocket: it is not closed for another before `end_request`."""
        self._requests += 1
        self._wait_for(None)

    def end_request(self) -> None:
        """Called when a request has ended; without another one the WebSocket may be closed from now on."""
        self._requests -= 1
        if not self._requests and not self.gone:
            self._wait_for(self._gate.socket)

    def evict(self, reason: str) -> None:
        """Ends at once, to make room for another WebSocket; counted under `reason`."""
        self._gate.stats.closed_connections[reason] += 1
        self.drop()

    def drop(self) -> None:
        """See `WaitingConnection`."""
        if self._web_socket is None:
            super().drop()
            return
        self._leave_gate()
        self._web_socket.evict()

    def web_socket_lost(self) -> None:
        """Called when the WebSocket is gone."""
        self._leave_gate()

    def _make_web_socket(self, **options: Any) -> HeldWebSocket:
        self._web_socket = HeldWebSocket(connection=self, **options)
        return self._web_socket

    def _leave_gate(self) -> None:
        self._gate.release(self)
        self._wait_for(None)
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
