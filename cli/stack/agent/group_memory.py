"""Measures the memory of groups: their processes' own pages, and their shares of pages in common (PSS)."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def group_bytes(leaders: Mapping[str, int]) -> dict[str, int]:
    """Return the memory of each group's processes, in bytes; groups that have ended are left out.

    Args:
        leaders: Process ids of leaders by their groups' names; each leads the process group of all its
            processes.
    """
    names = {pid: name for name, pid in leaders.items() if pid}
    found = dict[str, int]()
    for entry in os.scandir(PROC):
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):  # it has ended, or is another user's
                name = names.get(os.getpgid(int(entry.name)))
                if name is not None:
                    found[name] = found.get(name, 0) + process_bytes(int(entry.name))
    return found


def process_bytes(pid: int) -> int:
    """Return the PSS of a process, in bytes.

    Raises:
        OSError: It has ended.
    """
    for line in (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
