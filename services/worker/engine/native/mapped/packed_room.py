"""Room for packed weights in a directory, which `ryz up` counts on before groups load. No torch here."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LEAST_BYTES = 16 << 20  # of a share that is worth a file
FREE_BYTES = 1 << 30  # that the disk keeps
SUFFIX = ".packed"


def packed_room(directory: Path, limit_bytes: int) -> int:
    """Returns for how many bytes there is room; 0 if this user cannot write there.

    Files that no rank has mapped give their room to others; those of a running stack keep it.
    """
    place = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return 0
    used = unused = 0
    if place == directory:
        for path in directory.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # removed meanwhile
                size = path.stat().st_size
                used, unused = (used + size, unused) if _is_mapped(path) else (used, unused + size)
    disk = os.statvfs(place)
    return max(0, min(limit_bytes - used, disk.f_bavail * disk.f_frsize + unused - FREE_BYTES))


def _is_mapped(path: Path) -> bool:
    """Whether a rank holds the lock that says so."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
