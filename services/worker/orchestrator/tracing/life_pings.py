"""Pings the clock of a rank of this host on its life socket.

A round trip takes some tens of microseconds and is waited for on the spot, since the event loop would add its
own turns to it.
"""

import select
import socket
import time

from services.worker.rank_protocol.trace_messages import LIFE_PONG
from shared.telemetry.clock_estimate import RoundTrip

ANSWER_MS = 2  # the longest that the leader's event loop stands still for one ping


def ping_life(sock: socket.socket, number: int) -> RoundTrip | None:
    """Asks once.

    Args:
        sock: The leader's end of the rank's life socket, non-blocking.
        number: Of the ping, below 256; answers to other ones are dropped.

    Returns:
        The round trip; None: there was no answer in time, or the rank has ended.
    """
    poller, wanted = select.poll(), bytes([number])
    poller.register(sock, select.POLLIN)
    try:
        sent_ns = time.monotonic_ns()
        sock.send(wanted)
        while poller.poll(ANSWER_MS):
            answer = sock.recv(LIFE_PONG.size)
            heard_ns = time.monotonic_ns()
            if len(answer) < LIFE_PONG.size:
                return None
            told, received_ns, answered_ns = LIFE_PONG.unpack(answer)
            if told == number:
                return RoundTrip(sent_ns, received_ns, answered_ns, heard_ns)
    except OSError:
        return None
    return None
