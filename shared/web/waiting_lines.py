"""What connections wait for, since when, and which of them gives way to a new one. Pure.

A connection whose request is under way stands in no line, or in that of the paused ones, and never gives way.
"""

from collections.abc import Sequence
from typing import Protocol

SETTLED_S = 1.0  # one that has had so long for a request, and has not sent it, is no newcomer any more
# The lines in the order in which they give way. In the first four are connections that have sent no whole
# request, or whose request was refused; those in the next two have been answered. Those that are
# paused, which means not read from, have a request under way and stay.
LINGERING, FIRST_BYTE, HANDSHAKE, HEADERS, IDLE, UNREAD, PAUSED = range(7)


class WaitingConnection(Protocol):
    """What a gate needs of a connection.

    lines: those of its address, set by the gate.
    """

    lines: "Lines"

    def expire(self, waited_for: str) -> None:
        """The time for that is over."""

    def drop(self) -> None:
        """Ends at once, to make room or because the server ends. It leaves its line before this returns."""


# Since when (seconds) each of some connections waits; the one that has waited longest is the first.
Line = dict[WaitingConnection, float]
Lines = Sequence[Line]  # one of each kind


def new_lines() -> Lines:
    """Empty ones."""
    return tuple({} for _ in range(PAUSED + 1))


class Waiting:
    """Connections of all addresses that wait for the same thing.

    Args:
        name: what they wait for.
        kind: which line it is.
        limit_s: how long they may; None: something else ends them.
    """

    __slots__ = ("kind", "limit_s", "line", "name")

    def __init__(self, name: str, kind: int, limit_s: float | None) -> None:
        self.name = name
        self.kind = kind
        self.limit_s = limit_s
        self.line: Line = {}

    def add(self, connection: WaitingConnection, now_s: float) -> None:
        """Its time begins now."""
        self.line[connection] = connection.lines[self.kind][connection] = now_s

    def discard(self, connection: WaitingConnection) -> None:
        """It waits no longer; it was added before."""
        del self.line[connection], connection.lines[self.kind][connection]

    def expired(self, now_s: float) -> list[WaitingConnection]:
        """Those whose time is over."""
        if self.limit_s is None:
            return []
        over = []
        for connection, since_s in self.line.items():
            if now_s - since_s < self.limit_s:
                break
            over.append(connection)
        return over


def first_to_go(lines: Lines, now_s: float, places: int) -> WaitingConnection | None:
    """The connection that gives way to a new one; None: all have a request under way.

    Those go first that have had `SETTLED_S` for a request. Younger ones go next where they have more than
    half of the places, the oldest of them first, and else after those that were answered. So a client that
    connects and speaks is safe until half as many others as are allowed have come after it, and those that
    never speak take no more than half of the places from those that do.

    Args:
        lines: of all connections that share the places.
        now_s: the loop's time.
        places: how many there are.
    """
    newcomer: WaitingConnection | None = None
    came_s = now_s
    silent = 0
    for line in lines[:IDLE]:
        silent += len(line)
        for connection, since_s in line.items():
            if now_s - since_s >= SETTLED_S:
                return connection
            if newcomer is None or since_s < came_s:
                newcomer, came_s = connection, since_s
            break  # the others of this line came later
    if newcomer is None or silent <= places // 2:
        for line in lines[IDLE:PAUSED]:
            for connection in line:
                return connection
    return newcomer
