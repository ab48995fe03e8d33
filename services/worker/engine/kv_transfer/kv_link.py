"""One thread's connection to the store: commands out, replies in, each exchange within a time limit.

It decides when the store counts as away (`shared/circuit.py`) and knows nothing of blocks. Only the thread
that owns a link talks through it; others may read `away` and call `close`.
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

from shared.circuit import Circuit, CircuitLimits

Command = tuple[bytes | memoryview | str | int, ...]
_READ_BYTES = 2**20  # of one read from the socket: a block in one or two
_MAX_PARTS = 1000  # of one system call; Linux takes 1,024
_COPIED_BELOW = 6000  # bytes: shorter arguments are joined, longer ones go out from where they lie


class StoreAway(Exception):
    """The store did not answer, or may not be asked now; the text says which, for a person."""


class ConnectionLost(StoreAway):
    """A connection that had worked broke; the store may have restarted, and a second try is worth it."""


class _PunctualParser(DefaultParser):  # type: ignore[misc, valid-type]  # it is one of two classes
    """Reads until a moment in time, where the library counts anew with every piece that arrives."""

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


class Link:
    """Connects when it is first used, and again after a loss.

    url: of Redis. timeout_s: of connecting, and of one exchange from `send` to its last reply.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._circuit = Circuit(CircuitLimits())
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
        """Why the store is not to be asked now; empty: it may be."""
        return self._why if self._circuit.open else ""

    @property
    def probe_in_s(self) -> float | None:
        """Seconds until `probe` is due; None: it is not needed."""
        return self._circuit.retry_after_s(time.monotonic()) if self._circuit.open else None

    def send(self, commands: Iterable[Command]) -> None:
        """Starts an exchange. `receive` gives the replies, one for each command, in their order.

        Large arguments are not copied and have to stay as they are until then. Raises `StoreAway`.
        """
        parts = [part for command in commands for part in self._pack(*command)]
        self._parser.deadline = time.monotonic() + self._timeout_s
        try:
            self._connection.connect()
            self._parser.deadline = time.monotonic() + self._timeout_s
            self._send_all(parts)
        except Exception as error:  # a `close` by another thread shows as anything
            self._broken(error)

    def receive(self) -> Any:
        """The next reply; one that is an error is returned as `ResponseError`. Raises `StoreAway`."""
        try:
            reply = self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            reply = error
        except Exception as error:
            self._broken(error)
        self._proven = True
        self._circuit.succeeded()
        return reply

    def probe(self) -> None:
        """Asks the store whether it is there, so that the circuit closes when it is."""
        try:
            self.send([("PING",)])
            self.receive()
        except StoreAway:
            pass  # the circuit has been told

    def refuse(self, why: str) -> None:
        """The store answers, but will not do what it is for: leave it alone until the next probe."""
        self._why = why
        self._circuit.failed(time.monotonic(), refused=True)

    def close(self) -> None:
        """Ends the connection; an exchange that another thread waits for fails at once."""
        self._proven = False
        self._connection.disconnect()

    def _send_all(self, parts: list[bytes | memoryview]) -> None:
        """Sends with few system calls, where the library makes one for each part: a third of the time."""
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
        self._circuit.failed(time.monotonic(), refused=not late)
        raise StoreAway(self._why) from error
