"""Cores and memory that this machine or container gives to a process. No torch here."""

import os
from pathlib import Path

from shared.host.cgroup_memory import limited_cgroups

MEMINFO = Path("/proc/meminfo")


def usable_cores() -> int:
    """Return the number of cores that the process may run on; all cores if the system does not report it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes() -> int:
    """Return the memory that is free for new allocations, within a container's limit.

    Outside Linux the system does not report it, and it is all memory of the machine.
    """
    free = _meminfo("MemAvailable")
    if free is None:
        return _all_bytes()
    return max(0, min([free, *(one.limit - one.used + one.file_cache for one in limited_cgroups())]))


def machine_available_bytes() -> int:
    """Return the memory of the machine that is free for new allocations, whatever this container may take."""
    free = _meminfo("MemAvailable")
    return _all_bytes() if free is None else free


def total_bytes() -> int:
    """Return all memory of this machine or container."""
    return min([_all_bytes(), *(one.limit for one in limited_cgroups())])


def _all_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo(name: str) -> int | None:
    if not MEMINFO.exists():
        return None
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
