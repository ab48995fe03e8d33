"""How much memory this process may still take, from the kernel and from its cgroup."""

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that is free for new allocations; in a container no more than its limit leaves."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            break
    else:
        raise RuntimeError("/proc/meminfo has no MemAvailable")
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _file_cache()))


def _file_cache() -> int:
    """File pages that the kernel would give back; `memory.current` counts them."""
    for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no cgroup v2 here, or `max`: no limit
        return None
