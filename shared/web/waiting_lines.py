"""Lines of waiting connections, by what they wait for, and the choice of one to close for a new one.

Pure. A connection whose request is being answered stands in no line, or in that of the paused ones, and is
never closed. A WebSocket without a request is one of the waiting connections.
"""

from collections.abc import Sequence
from typing import Protocol

SETTLED_S = 1.0  # a connection that has waited so long without a request is no newcomer any more
# The lines in the order in which their connections are closed. Connections in the first four have sent no
# whole request, or theirs was refused; those in the next two have been answered. Then come WebSockets without
# a request. Paused connections, which are not read from, have a request under way and stay.
LINGERING, FIRST_BYTE, HANDSHAKE, HEADERS, IDLE, UNREAD, SOCKET, PAUSED = range(8)


class WaitingConnection(Protocol):
    """A connection as the gate sees it.

    Attributes:
        lines: The lines of its address, set by the gate.
    """

    lines: "Lines"

    def expire(self, waited_for: str) -> None:
        """Called when the time for what it waits for is over."""

    def drop(self) -> None:
        """Ends at once, to make room or because the server ends; leaves its line before this returns."""


# When each connection began to wait, in seconds; the one that has waited longest is the first.
Line = dict[WaitingConnection, float]
Lines = Sequence[Line]  # one of each kind


def new_lines() -> Lines:
    """Makes an empty line of each kind."""
    return tuple({} for _ in range(PAUSED + 1))


class Waiting:
    """Connections of all addresses that wait for the same thing.

    Args:
        name: What the connections wait for.
        kind: Which line it is.
        limit_s: How long they may wait; None if something else ends them.
    """

    __slots__ = ("kind", "limit_s", "line", "name")

    def __init__(self, name: str, kind: int, limit_s: float | None) -> None:
        self.name = name
        self.kind = kind
        self.limit_s = limit_s
        self.line: Line = {}

    def add(self, connection: WaitingConnection, now_s: float) -> None:
        """Adds a connection, whose time begins now."""
        self.line[connection] = connection.lines[self.kind][connection] = now_s

    def discard(self, connection: WaitingConnection) -> None:
        """Removes a connection that was added before."""
        del self.line[connection], connection.lines[self.kind][connection]

    def expired(self, now_s: float) -> list[WaitingConnection]:
        """The connections whose time is over."""
        if self.limit_s is None:
            return []
        over = []
        for connection, since_s in self.line.items():
            if now_s - since_s < self.limit_s:
                break
            over.append(connection)
        return over


def first_to_go(lines: Lines, now_s: float, slots: int) -> WaitingConnection | None:
    """The connection that is closed for a new one; None if all have a request under way.

    Connections without a request go first, once they have had `SETTLED_S` for one. Younger ones go next if
    they have more than half of the slots, the oldest of them first; otherwise answered ones go before them.
    So a client that sends a request soon keeps its slot until half as many others as are allowed have come
    after it, and silent connections take no more than half of the slots from the others.

    Args:
        lines: Lines of all connections that share the slots.
        slots: How many slots there are.
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
    if newcomer is None or silent <= slots // 2:
        for line in lines[IDLE:PAUSED]:
            for connection in line:
                return connection
    return newcomer
