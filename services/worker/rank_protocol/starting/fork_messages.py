"""Messages between a leader and its fork server, one in each packet of their socket.

The leader numbers the processes that it asks for, since it does not know a process id before the fork. The
server reports the start and the end of each process, once.
"""

import msgspec

MAX_PACKET_BYTES = 4096
MAX_DESCRIPTORS = 8


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Leader: fork a rank. The packet carries its descriptors: the socket to the leader, then others.

    Attributes:
        child: The leader's number for the process.
        numbers: The leader's numbers of the other descriptors; messages to the rank use these.
    """

    child: int
    rank: int
    numbers: list[int]


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Leader: kill that child if it still runs."""

    child: int


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Fork server: the child has this process id."""

    child: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Fork server: the child ended; the exit code is negative for a signal."""

    child: int
    exit_code: int


ForkServerRequest = Fork | Kill
ForkServerReport = Forked | Ended
