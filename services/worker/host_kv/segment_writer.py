"""Writes a rank's blocks into its segment of the host tier: a ring, in which the oldest block goes first."""

import os
import threading
from pathlib import Path
from typing import NamedTuple

from services.worker.host_kv.pool_directory import open_directory, open_segment, try_lock, unlock
from services.worker.host_kv.segment import (
    NEW_SUFFIX,
    SUFFIX,
    NotASegment,
    SegmentMap,
    SegmentShape,
    read_shape,
)
from shared.kv_hash import NAME_BYTES

_NAMES = 3  # of a segment: the process before may not have ended yet


class Slot(NamedTuple):
    """A slot that was lent to be written: its number in the order of writing, its place, its bytes."""

    number: int
    at: int
    rows: memoryview


class SegmentWriter:
    """The only writer of a segment.

    `lend`, `publish` and `discard` are for one thread; `release` is for any.

    Args:
        directory: Of the host tier.
        owner: Names the file: the group.
        shape: Of the segment.

    Raises:
        UnsafeDirectory: The directory is open to other users.
        NotASegment: Another process writes this segment, or there is no room for a block.
        OSError: There is no memory for it.
    """

    def __init__(self, directory: str, owner: str, shape: SegmentShape) -> None:
        if shape.slots < 1:
            raise NotASegment("RYZ_KV_HOST_BYTES has no room for a block")
        self._fd = _open_any(open_directory(directory), owner, shape)
        self._map = SegmentMap(self._fd, shape, populate=True)
        self._number = max(self._map.number(at) for at in range(shape.slots))  # of a process before
        self._used: set[int] = set()  # places that are lent, or read by the store's writer
        self._using = threading.Lock()

    @property
    def shape(self) -> SegmentShape:
        """Of the segment."""
        return self._map.shape

    def lend(self) -> Slot | None:
        """Returns the slot of the oldest block, which is gone from now on; None while that is in use."""
        number = self._number + 1
        at = number % self.shape.slots
        with self._using:
            if at in self._used:
                return None
            self._used.add(at)
        self._number = number
        self._map.retire(at)
        return Slot(number, at, self._map.rows(at))

    def publish(self, slot: Slot, name: bytes) -> None:
        """Makes a written slot readable for all; its bytes stay until `release`."""
        self._map.publish(slot.at, slot.number, name)

    def discard(self, slot: Slot) -> None:
        """Gives back a slot that was not filled. Its number is used up: readers follow the numbers."""
        self._map.publish(slot.at, slot.number, bytes(NAME_BYTES))
        self.release(slot)

    def release(self, slot: Slot) -> None:
        """Lets a slot be overwritten when its turn comes."""
        with self._using:
            self._used.discard(slot.at)

    def close(self) -> None:
        """Gives the segment up; its blocks stay readable."""
        unlock(self._fd)  # the mapping has the file open, too
        os.close(self._fd)


def _open_any(directory: Path, owner: str, shape: SegmentShape) -> int:
    """Takes the first name that no other process uses; returns the locked file."""
    for attempt in range(_NAMES):
        path = directory / f"{owner}.{shape.heads.start}-{shape.heads.stop}.{attempt}{SUFFIX}"
        fd = _take_over(path, shape)
        if fd is not None:
            return fd
    raise NotASegment(f"other processes write {_NAMES} segments of {owner} in {directory}")


def _take_over(path: Path, shape: SegmentShape) -> int | None:
    """Takes over the segment that a dead process left, or makes a new one; None if a process writes it."""
    try:
        fd = open_segment(path)
    except FileNotFoundError:
        return _make(path, shape)
    if not try_lock(fd):
        os.close(fd)
        return None
    try:
        usable = read_shape(fd) == shape and os.fstat(fd).st_nlink > 0
    except NotASegment:
        usable = False
    if usable:
        return fd
    path.unlink(missing_ok=True)
    os.close(fd)
    return _make(path, shape)


def _make(path: Path, shape: SegmentShape) -> int:
    """Makes a whole segment under another name first, so that readers see no part of one."""
    made = path.with_suffix(NEW_SUFFIX)
    made.unlink(missing_ok=True)
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try_lock(fd)
        os.posix_fallocate(fd, 0, shape.num_bytes)  # else a full file system would end the process later
        os.pwrite(fd, shape.pack(), 0)
        os.rename(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd
