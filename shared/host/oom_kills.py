"""How often the kernel has killed a process because memory was short."""

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


def oom_kills(path: Path = _VMSTAT) -> int:
    """Return the kernel's number of such kills since it started; 0 where it does not report it.

    Linux counts a kill before it sends the signal, so who sees the process end also sees the count. The
    count is that of the whole machine, containers included.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
