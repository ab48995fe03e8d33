"""Writes the environment of a forked service to where the kernel shows it: `/proc/PID/environ`.

A fork has the environment block of its fork server, in the memory where the kernel had put it at the start of
that process. Nothing reads it there once `os.environ` was cleared and filled anew: libc keeps new variables
elsewhere. Those who look into a process do: `users_of` in `cli/models/commands.py`, and people.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

# A variable of the fork server that makes its block large enough for what its services have beside it.
ROOM = {"RYZ_FORKS_ROOM": "." * 16_384}
_BLOCK_START, _BLOCK_END = 50, 51  # fields of /proc/PID/stat, counted from 1 (proc(5))
_AFTER_NAME = 3  # the first field behind the name of the process, which may have spaces


def show_environment(environment: Mapping[str, str]) -> None:
    """Replace the block of this process. Variables that find no room are left out, those of others first."""
    own = sorted(environment, key=lambda name: not name.startswith("RYZ_"))
    start, end = _block()
    room, data = end - start, b""
    for name in own:
        variable = os.fsencode(f"{name}={environment[name]}") + b"\0"
        if len(data) + len(variable) <= room:
            data += variable
    if room > 0:
        ctypes.memmove(start, data.ljust(room, b"\0"), room)


def _block() -> tuple[int, int]:
    """Addresses where the block begins and ends; equal where the kernel does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[_BLOCK_START - _AFTER_NAME]), int(fields[_BLOCK_END - _AFTER_NAME])
    except (OSError, ValueError, IndexError):
        return 0, 0
