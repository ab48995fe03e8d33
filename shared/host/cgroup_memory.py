"""The memory limits of the cgroups that this process is in, of versions 1 and 2 (`man 7 cgroups`)."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_UNLIMITED = 2**60  # version 1 writes a number near 2**63 in place of `max`


class _Files(NamedTuple):
    """The names of one version: its mount, and files or lines of them."""

    mount: str
    limit: str
    used: str
    file_cache: str


_V1 = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files(".", "memory.max", "memory.current", "inactive_file")


class CgroupMemory(NamedTuple):
    """A cgroup's memory in bytes.

    Attributes:
        limit: The most that it may use.
        used: What it uses, file pages included.
        file_cache: File pages of it that the kernel would free.
    """

    limit: int
    used: int
    file_cache: int


def limited_cgroups() -> Iterator[CgroupMemory]:
    """Yield the own cgroup and those around it, as far as they have a limit."""
    for files, own in _own_paths():
        for path in (own, *own.parents):
            directory = MOUNT / files.mount / path.relative_to("/")
            limit, used = _number(directory / files.limit), _number(directory / files.used)
            if limit is not None and used is not None and limit < _UNLIMITED:
                yield CgroupMemory(limit, used, _file_cache(directory / "memory.stat", files.file_cache))


def _own_paths() -> Iterator[tuple[_Files, PurePosixPath]]:
    """Yield the path of the own cgroup in each hierarchy that may limit memory.

    In a container it may be that outside of it, which is not mounted here: then the root counts alone.
    """
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # no Linux
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield _V2, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _V1, PurePosixPath(path)


def _file_cache(stat: Path, name: str) -> int:
    for line in stat.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # another version, or `max`: no limit
        return None
