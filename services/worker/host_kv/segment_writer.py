"""Writes a rank's blocks into its segment of the host tier: a ring, in which the oldest block goes first.

The ring's memory is reserved in pieces, a little before the writer comes to them. So a small group takes
little, and a full file system is an error here and not a signal when the memory is used.
"""

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.worker.host_kv.mapped_pages import map_pages
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
PIECE_BYTES: Final = 2 * 2**20  # reserved at a time: some 2 ms
AHEAD_BYTES: Final = 32 * 2**20  # reserved at most before they are needed, while nothing else is to do


class Slot(NamedTuple):
    """A slot that was lent to be written: its number in the order of writing, its index, its rows."""

    number: int
    at: int
    rows: NDArray[np.uint8]


class SegmentWriter:
    """The only writer of a segment.

    `lend`, `publish` and `discard` are for one thread; `release` and `reserve_ahead` are for any.

    Args:
        owner: Names the file: the group.

    Raises:
        UnsafeDirectory: The directory is open to other users.
        NotASegment: Another process writes this segment, or there is no room for a block.
        OSError: There is no memory for it.
    """

    def __init__(self, directory: str, owner: str, shape: SegmentShape) -> None:
        if shape.slots < 1:
            raise NotASegment("RYZ_KV_HOST_BYTES has no room for a block")
        self._fd = _open_any(open_directory(directory), owner, shape)
        self._map = SegmentMap(self._fd, shape)
        last = int(np.argmax(self._map.numbers))  # of a process before
        self._number = self._map.number(last)
        self._next = (last + 1) % shape.slots if self._number else 0
        self._used: set[int] = set()  # slots that are lent, or read by the store's writer
        self._using = threading.Lock()
        self._reserved = 0  # slots that have memory
        self._full = False  # there was no memory for more; tried again when the ring begins anew
        self._reserving = threading.Lock()
        if not self._reserve(self._next) and not self._reserved:
            raise NotASegment("the file system has no room for a block")

    @property
    def shape(self) -> SegmentShape:
        """Of the segment."""
        return self._map.shape

    def lend(self) -> Slot | None:
        """Returns the slot of the oldest block, which is gone from now on; None while that is in use."""
        at = self._next if self._reserve(self._next) else 0
        self._full = self._full and at > 0
        with self._using:
            if at in self._used:
                return None
            self._used.add(at)
        self._number += 1
        self._next = (at + 1) % self.shape.slots
        self._map.retire(at)
        return Slot(self._number, at, self._map.rows[at])

    def publish(self, slot: Slot, name: bytes) -> None:
        """Makes a written slot readable for all; its bytes stay until `release`."""
        self._map.publish(slot.at, slot.number, name)

    def discard(self, slot: Slot) -> None:
        """Gives back a slot that was not filled."""
        self._map.publish(slot.at, slot.number, bytes(NAME_BYTES))
        self.release(slot)

    def release(self, slot: Slot) -> None:
        """Lets a slot be overwritten when the writer comes to it."""
        with self._using:
            self._used.discard(slot.at)

    def reserve_ahead(self) -> bool:
        """Reserves a piece of what will be needed next; returns whether more is to be reserved.

        As much as was used so far, so that a group that is at rest takes little.
        """
        used = self._next * self.shape.slot_bytes
        ahead = min(AHEAD_BYTES, max(PIECE_BYTES, used)) // self.shape.slot_bytes
        wanted = min(self.shape.slots, self._next + max(1, ahead))
        return self._reserve(min(self._reserved, wanted - 1)) and self._reserved < wanted

    def close(self) -> None:
        """Gives the segment up; its blocks stay readable."""
        unlock(self._fd)  # the mapping has the file open, too
        os.close(self._fd)

    def _reserve(self, slot: int) -> bool:
        """Returns whether a slot has memory, after trying to give it some."""
        if slot < self._reserved:
            return True
        shape = self.shape
        with self._reserving:
            while self._reserved <= slot and not self._full:
                stop = min(shape.slots, self._reserved + max(1, PIECE_BYTES // shape.slot_bytes))
                begin = shape.slot_at(self._reserved)
                try:
                    os.posix_fallocate(self._fd, begin, shape.slot_at(stop) - begin)
                except OSError:
                    self._full = True
                    break
                map_pages(self._map.address + begin, shape.slot_at(stop) - begin, write=True)
                self._reserved = stop
            return slot < self._reserved


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
    """Makes a segment without slots under another name first, so that readers see no part of a header."""
    made = path.with_suffix(NEW_SUFFIX)
    made.unlink(missing_ok=True)
    fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try_lock(fd)
        os.posix_fallocate(fd, 0, shape.first_slot_at)
        os.ftruncate(fd, shape.num_bytes)
        os.pwrite(fd, shape.pack(), 0)
        os.rename(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd
