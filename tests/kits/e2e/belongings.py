"""Lists the files, Unix sockets and listening ports of processes, as root sees them."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run")
PROGRAMS = (f"{sys.prefix}/", f"{Path(__file__).resolve().parents[3]}/")


@dataclass(slots=True)
class Belongings:
    """What a set of processes has open.

    Attributes:
        pids: The processes.
        paths: Files and directories.
        sockets: Names of Unix sockets; a leading @ marks an abstract one.
        ports: Process name by listening port.
        other_hosts: Listeners on addresses other than loopback, as host:port.
    """

    pids: list[int]
    paths: set[str] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)
    ports: dict[int, str] = field(default_factory=dict)
    other_hosts: set[str] = field(default_factory=set)


def belongings(pids: Iterable[int], folder: Path) -> Belongings:
    """Everything that these processes have open, mapped or listen on, and every path below `folder`."""
    found = Belongings(sorted(pids))
    found.paths = {str(folder), *map(str, folder.rglob("*"))}
    inodes = set()
    for pid in found.pids:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
                    elif _is_left_somewhere(target):
                        found.paths.add(target)
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                name = line[73:].strip()
                if _is_left_somewhere(name):
                    found.paths.add(name)
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        parts = line.split(maxsplit=7)
        if len(parts) == 8 and parts[6] in inodes:
            found.sockets.add(parts[7])
    for pid in found.pids:
        for one in psutil.Process(pid).net_connections("inet"):
            if one.status == psutil.CONN_LISTEN or one.type.name == "SOCK_DGRAM":
                found.ports[one.laddr.port] = psutil.Process(pid).name()
                if not one.laddr.ip.startswith(("127.", "::1")):
                    found.other_hosts.add(f"{one.laddr.ip}:{one.laddr.port}")
    return found


def _is_left_somewhere(name: str) -> bool:
    """Whether the file is in a place open to other users; programs and libraries do not count."""
    return name.startswith(FOLDERS) and not name.startswith(PROGRAMS) and not name.endswith(" (deleted)")
