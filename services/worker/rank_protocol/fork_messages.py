"""What a leader and the nursery of its ranks say to each other, one message in each packet of their socket.

The leader asks for processes and names them by numbers of its own, since it does not know a process id before
the nursery has forked; the nursery says what became of them, each once.
"""

import msgspec

MAX_PACKET_BYTES = 4096
MAX_DESCRIPTORS = 8


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Leader: fork a rank. The packet carries its descriptors: the socket to the leader, then others.

    numbers: what the others are called in the leader; messages to the rank use these.
    """

    child: int
    rank: int
    numbers: list[int]


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Leader: kill that child if it still runs."""

    child: int


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Nursery: the child has this process id."""

    child: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Nursery: the child ended, with an exit code, or negative by a signal."""

    child: int
    exit_code: int


ForkServerRequest = Fork | Kill
ForkServerReport = Forked | Ended
