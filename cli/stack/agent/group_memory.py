"""Measures the memory of groups: their processes' own pages, and their shares of pages in common (PSS)."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def group_bytes(leaders: Mapping[str, int]) -> dict[str, int]:
    """Return the memory of each group's processes, in bytes; groups that have ended are left out.

    Args:
        leaders: Process ids of leaders by their groups' names. All processes of a group descend from
            its leader; ranks have process groups of their own, so that Ctrl-C does not reach them.
    """
    names = {pid: name for name, pid in leaders.items() if pid}
    parents, found = _parents(), dict[str, int]()
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor not in names:
            ancestor = parents[ancestor]
        if ancestor in names:
            with suppress(OSError, ValueError):  # it has ended, or is another user's
                found[names[ancestor]] = found.get(names[ancestor], 0) + process_bytes(pid)
    return found


def _parents() -> dict[int, int]:
    """The parents of all processes, by process id."""
    found = dict[int, int]()
    for entry in os.scandir(PROC):
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):  # it has ended
                stat = (PROC / entry.name / "stat").read_bytes()
                # after the name, which may have spaces and brackets, comes the state, then the parent
                found[int(entry.name)] = int(stat[stat.rindex(b")") + 1 :].split()[1])
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
