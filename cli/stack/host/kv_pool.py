"""The directory in shared memory where the groups of a stack share KV blocks.

Each start makes a new one, locks it, and removes it at the end. What a supervisor left that was killed is not
locked; the next start of any stack of the same user removes it.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from services.worker.host_kv.segment import NEW_SUFFIX, SUFFIX

SHARED_MEMORY: Final = Path("/dev/shm")
DIRECTORY, MEMORY = "RYZ_KV_HOST_DIR", "RYZ_KV_HOST_BYTES"
MOST_BYTES: Final = 256 * 2**20  # of a group
LEAST_BYTES: Final = 8 * 2**20  # with less the groups share nothing
_SHARE_OF_FREE: Final = 0.5  # of the file system; processes use it for other things, too
_SHARE_OF_MACHINE: Final = 1 / 32
_TRIES = 3


@contextmanager
def shared_kv_pool(
    groups: int, environ: Mapping[str, str], machine_bytes: int, parent: Path = SHARED_MEMORY
) -> Iterator[dict[str, str]]:
    """Make the directory, and remove it at the end.

    Args:
        environ: With `RYZ_KV_HOST_DIR`, also if it is empty, nothing is made.
        machine_bytes: All memory of this machine.
        parent: A file system in memory.

    Yields:
        Settings of the workers; none if there is no room for it.
    """
    if DIRECTORY in environ or not groups:
        yield {}
        return
    with suppress(OSError):
        remove_unused(parent)
    made = None
    try:
        num_bytes = _room(parent, machine_bytes) // groups
        made = _make(parent) if num_bytes >= LEAST_BYTES else None
    except OSError:
        num_bytes = 0  # there is no such file system, or it takes no files of ours
    if made is None:
        yield {}
        return
    path, lock = made
    try:
        given = environ.get(MEMORY)
        yield {DIRECTORY: str(path)} | ({} if given else {MEMORY: str(min(MOST_BYTES, num_bytes))})
    finally:
        _remove(path)
        os.close(lock)


def remove_unused(parent: Path) -> None:
    """Remove directories of this user whose supervisor is gone."""
    with os.scandir(parent) as entries:
        paths = [Path(one.path) for one in entries if one.name.startswith(_prefix())]
    for path in paths:
        lock = _lock(path)
        if lock is not None:
            _remove(path)
            os.close(lock)


def _prefix() -> str:
    return f"ryz-kv-{os.geteuid()}-"


def _room(parent: Path, machine_bytes: int) -> int:
    found = os.statvfs(parent)
    return int(min(_SHARE_OF_FREE * found.f_bavail * found.f_frsize, _SHARE_OF_MACHINE * machine_bytes))


def _make(parent: Path) -> tuple[Path, int] | None:
    """Make a directory and lock it; another stack that is just starting may remove it before that."""
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=parent))
        lock = _lock(path)
        if lock is not None:
            return path, lock
    return None


def _lock(path: Path) -> int | None:
    """Return the locked directory; None if it is locked, gone, or not a directory of this user alone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077 and path.exists():
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _remove(path: Path) -> None:
    """Remove segments and their directory; it stays if it holds anything else."""
    with suppress(OSError):
        for file in [one for one in path.iterdir() if one.suffix in {SUFFIX, NEW_SUFFIX}]:
            file.unlink(missing_ok=True)
        path.rmdir()
