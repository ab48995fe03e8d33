"""Messages between a test and the process that programs are forked from, one in each packet."""

import msgspec

MAX_PACKET_BYTES = 256 * 1024  # above the usual limit of the kernel for one packet, so that none is cut
ADDRESS = "RYZ_TEST_PROGRAMS"  # a variable: the socket of that process


class Run(msgspec.Struct, frozen=True):
    """Test: run a module as `python -P -m` would. The packet carries stdin, stdout and stderr.

    Attributes:
        command: What `ps` shows.
        folder: The working directory.
        niceness: Of the test.
    """

    module: str
    arguments: list[str]
    command: list[str]
    environment: dict[str, str]
    folder: str
    niceness: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """Server: the program runs. The packet carries a descriptor of its process."""

    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Server: the program has ended with this code, negative for a signal."""

    code: int


Report = Started | Ended
