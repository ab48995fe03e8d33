"""Pings the clock of a rank of this host, which answers on its life socket.

A round trip takes some tens of microseconds and is waited for on the spot, since the event loop would add its
own delays to it. On a busy machine an answer may come later than the leader may stand still; it is read with
one of the next pings, and bounds the clock less closely.
"""

import select
import socket
import time

from services.worker.rank_protocol.trace_messages import LIFE_PONG
from shared.telemetry.clock_estimate import RoundTrip

ANSWER_MS = 2  # the longest that the leader's event loop stands still for one ping
_NUMBERS = 256  # of pings: a byte


class LifePings:
    """Pings one rank.

    Args:
        sock: The leader's end of the rank's life socket, non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sent: dict[int, int] = {}  # when pings without an answer were sent, by number
        self._next = 0
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    def ping(self) -> tuple[list[RoundTrip], bool]:
        """Sends a ping and waits for its answer for `ANSWER_MS`.

        Returns:
            The round trips that have ended, late ones of earlier pings among them, and whether this ping was
            answered in time; not if the rank has ended.
        """
        number, self._next = self._next, (self._next + 1) % _NUMBERS
        self._sent[number] = time.monotonic_ns()
        try:
            self._sock.send(bytes([number]))
        except OSError:
            return [], False
        trips = self._read(ANSWER_MS, wanted=number)
        return trips, number not in self._sent

    def take_late(self) -> list[RoundTrip]:
        """Returns the round trips of earlier pings whose answers have come meanwhile; does not wait."""
        return self._read(0)

    def _read(self, wait_ms: int, wanted: int = -1) -> list[RoundTrip]:
        trips: list[RoundTrip] = []
        try:
            while self._poller.poll(wait_ms):
                answer = self._sock.recv(LIFE_PONG.size)
                heard_ns = time.monotonic_ns()
                if len(answer) < LIFE_PONG.size:
                    break
                number, received_ns, answered_ns = LIFE_PONG.unpack(answer)
                if (sent_ns := self._sent.pop(number, None)) is not None:
                    trips.append(RoundTrip(sent_ns, received_ns, answered_ns, heard_ns))
                if number == wanted:
                    break
        except OSError:
            pass  # the rank has ended: what came before counts
        return trips
