"""The directory of the host tier: mode 0700, of this user, and no link of another user leads to it.

A segment's writer holds a lock on its file, which the kernel releases when the process ends. A file without
a lock is what a dead process left: its blocks are still read, the next rank with the same index takes it
over, and `DeadSegments` removes it if none comes.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from services.worker.host_kv.segment import NEW_SUFFIX, SUFFIX
from shared.host.own_paths import walk

DEAD_S = 300.0  # a segment without a writer stays so long


class UnsafeDirectory(Exception):
    """The directory cannot be used; the text says why and what to do."""


def open_directory(path: str) -> Path:
    """Makes the directory if it is missing, and returns its path without links.

    Raises:
        UnsafeDirectory: It is another user's, or other users may enter it.
        OSError: It cannot be made.
    """
    folder = walk(Path(path))
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnsafeDirectory(
            f"{folder} is not a directory of this user alone (mode 0700); name another with RYZ_KV_HOST_DIR"
        )
    return folder


def open_segment(path: Path) -> int:
    """Opens a segment's file, never through a link. Raises `OSError`."""
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def try_lock(fd: int) -> bool:
    """Returns whether this open file has the writer's lock now; it is released with the process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(fd: int) -> None:
    """Releases the writer's lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)


class DeadSegments:
    """Removes segments that had no writer for `DEAD_S`.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._dead_since: dict[tuple[str, int], float] = {}

    def sweep(self) -> int:
        """Checks all segments; returns how many were removed."""
        now, seen, removed = self._clock(), dict[tuple[str, int], float](), 0
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, NEW_SUFFIX)):
                    removed += self._inspect(entry, now, seen)
        self._dead_since = seen
        return removed

    def _inspect(self, entry: os.DirEntry[str], now: float, seen: dict[tuple[str, int], float]) -> int:
        try:
            fd = open_segment(Path(entry.path))
        except OSError:
            return 0
        try:
            if not try_lock(fd):
                return 0
            key = entry.name, os.fstat(fd).st_ino
            seen[key] = self._dead_since.get(key, now)
            if now - seen[key] < DEAD_S:
                return 0
            del seen[key]
            os.unlink(entry.path)  # with the lock: a rank that wants to take it over makes a new one
            return 1
        except OSError:
            return 0
        finally:
            os.close(fd)
