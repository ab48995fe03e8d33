"""What processes have: files, Unix sockets, listening ports. As root sees it."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run")
PROGRAMS = (f"{sys.prefix}/", f"{Path(__file__).resolve().parents[3]}/")


@dataclass(slots=True)
class Belongings:
    """Of a family of processes."""

    pids: list[int]
    paths: set[str] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)
    ports: dict[int, str] = field(default_factory=dict)  # with the process's name
    other_hosts: set[str] = field(default_factory=set)  # listeners on addresses that are not loopback


def belongings(pids: Iterable[int], folder: Path) -> Belongings:
    """All that these processes have open, map or listen on, and all below `folder`."""
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
    """Whether it is a file where others may look, and no program or library: those may lie anywhere."""
    return name.startswith(PLACES) and not name.startswith(PROGRAMS) and not name.endswith(" (deleted)")
