"""Messages between the supervisor and a fork server, one in each packet of their socket."""

import msgspec

MAX_PACKET_BYTES = 256 * 1024  # above the usual limit of the kernel for one packet, so that none is cut


class ForkService(msgspec.Struct, frozen=True):
    """Supervisor: start a service. The packet carries its log and, if `listens`, its listening socket.

    Attributes:
        name: What `top` shows.
        command: What `ps` shows: the command that would start the same by an interpreter of its own.
        module: Its `main` is called.
        environment: Replaces that of the fork server.
        cores: On which it may run; empty: on those of the fork server.
    """

    name: str
    command: str
    module: str
    environment: dict[str, str]
    listens: bool
    cores: tuple[int, ...] = ()


class Imported(msgspec.Struct, frozen=True, tag=True):
    """Fork server, once: all modules are imported."""


class ServiceForked(msgspec.Struct, frozen=True, tag="Forked"):
    """Fork server: the service has this process id. It becomes a child of the supervisor at once."""

    pid: int


Report = Imported | ServiceForked
