"""One thread's connection to the store: commands out, replies in, each exchange within a time limit.

Its circuit (`shared/flow/circuit.py`) decides when the store counts as unreachable. Only the thread that owns
a link exchanges through it; others may read `away` and call `close`.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.connection import DefaultParser, PythonRespSerializer
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from shared.flow.circuit import Circuit, store_limits

Command = tuple[bytes | memoryview | str | int, ...]
_READ_BYTES = 2**20  # of one read from the socket: a block in one or two
_MAX_PARTS = 1000  # of one system call; Linux takes 1,024
_COPIED_BELOW = 6000  # bytes: shorter arguments are copied together, longer ones are sent in place


class StoreUnreachable(Exception):
    """The store did not answer, or its circuit is open; the text says which."""


class ConnectionLost(StoreUnreachable):
    """A working connection broke; the store may have restarted, so a second try is worthwhile."""


class _PunctualParser(DefaultParser):  # type: ignore[misc, valid-type]  # it is one of two classes
    """Reads until a deadline; the library's parser restarts its timeout with every piece that arrives."""

    deadline = float("inf")  # monotonic seconds

    @property
    def sock(self) -> socket.socket:
        """The connection's socket."""
        found: socket.socket | None = self._sock
        if found is None:
            raise ConnectionError("closed meanwhile")
        return found

    def read_from_socket(self, timeout: object = None, raise_on_timeout: bool = True) -> bool:
        left_s = min(max(0.001, self.deadline - time.monotonic()), 3600.0)
        return bool(super().read_from_socket(timeout=left_s, raise_on_timeout=raise_on_timeout))


class StoreLink:
    """Connects when it is first used, and again after a loss.

    Args:
        timeout_s: Limit of connecting, and of one exchange from `send` to its last reply.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._circuit = Circuit(store_limits())
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_read_size=_READ_BYTES,
            parser_class=self._make_parser,
            retry=Retry(NoBackoff(), 0),
        )
        self._connection: Any = pool.make_connection()  # which makes `_parser`
        self._pack: Callable[..., list[bytes | memoryview]]
        self._pack = PythonRespSerializer(_COPIED_BELOW, pool.get_encoder().encode).pack
        self._proven = False  # the present connection has answered
        self._why = ""

    @property
    def away(self) -> str:
        """Why the circuit is open; empty if it is closed."""
        return "" if self._circuit.is_closed else self._why

    @property
    def probe_in_s(self) -> float | None:
        """Seconds until `probe` is due; None if the circuit is closed."""
        return None if self._circuit.is_closed else self._circuit.retry_after_s(time.monotonic())

    def send(self, commands: Iterable[Command]) -> None:
        """Starts an exchange. `receive` gives the replies, one for each command, in their order.

        Large arguments are not copied and must not change until then.

        Raises:
            StoreUnreachable: The connection failed.
        """
        parts = [part for command in commands for part in self._pack(*command)]
        self._parser.deadline = time.monotonic() + self._timeout_s
        try:
            self._connection.connect()
            self._parser.deadline = time.monotonic() + self._timeout_s
            self._send_all(parts)
        except Exception as error:  # `close` by another thread may raise anything here
            self._broken(error)

    def receive(self) -> Any:
        """The next reply; an error reply is returned as `ResponseError`.

        Raises:
            StoreUnreachable: None came in time.
        """
        try:
            reply = self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            reply = error
        except Exception as error:
            self._broken(error)
        self._proven = True
        self._circuit.count_success()
        return reply

    def probe(self) -> None:
        """Pings the store, so that the circuit closes if it answers."""
        try:
            self.send([("PING",)])
            self.receive()
        except StoreUnreachable:
            pass  # the circuit has counted it

    def refuse(self, why: str) -> None:
        """Opens the circuit of a store that answers but refuses commands."""
        self._why = why
        self._circuit.count_failure(time.monotonic(), certain=True)

    def close(self) -> None:
        """Ends the connection; an exchange in another thread fails at once."""
        self._proven = False
        self._connection.disconnect()

    def _send_all(self, parts: list[bytes | memoryview]) -> None:
        """Sends with few system calls, in a third of the time of the library, which makes one per part."""
        sock = self._parser.sock
        if isinstance(sock, ssl.SSLSocket):
            self._connection.send_packed_command(parts, check_health=False)
            return
        at = 0
        while at < len(parts):
            if time.monotonic() > self._parser.deadline:
                raise TimeoutError("while sending")
            sent = sock.sendmsg(parts[at : at + _MAX_PARTS])
            while at < len(parts) and sent >= len(parts[at]):
                sent -= len(parts[at])
                at += 1
            if sent:
                parts[at] = memoryview(parts[at])[sent:]

    def _make_parser(self, socket_read_size: int) -> _PunctualParser:
        self._parser = _PunctualParser(socket_read_size)
        return self._parser

    def _broken(self, error: Exception) -> None:
        self._connection.disconnect()
        text = str(error) if isinstance(error, RedisError) else f"{type(error).__name__}: {error}"
        proven, self._proven = self._proven, False
        late = isinstance(error, TimeoutError | RedisTimeoutError)
        if proven and not late:
            raise ConnectionLost(f"the KV store was lost: {text}") from error
        why = f"the KV store did not answer within {self._timeout_s:g} s" if late else "the KV store is away"
        self._why = f"{why}: {text}"
        self._circuit.count_failure(time.monotonic(), certain=not late)
        raise StoreUnreachable(self._why) from error
