"""Cores and memory that this machine or container gives to a process. No torch here."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
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
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _file_cache()))


def total_bytes() -> int:
    """Return all memory of this machine or container."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _number(CGROUP / "memory.max") or total)


def _meminfo(name: str) -> int | None:
    if not MEMINFO.exists():
        return None
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _file_cache() -> int:
    """Return the bytes of file pages that the kernel would free; `memory.current` counts them."""
    for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no cgroup v2 here, or `max`: no limit
        return None
