"""Reads the segments of all ranks of a host: which blocks are there, and the bytes of a head.

A reader follows each segment by the numbers of its slots and remembers where a name was seen last; the slot
itself is checked whenever it is used. For one thread.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.worker.host_kv.mapped_pages import map_pages
from services.worker.host_kv.pool_directory import open_segment
from services.worker.host_kv.segment import SUFFIX, NotASegment, SegmentMap, read_shape

_MAP_BYTES: Final = 4 * 2**20  # mapped at a time: about a millisecond


class HostRows(NamedTuple):
    """Some heads of a block in one segment; valid if `is_intact()` after the bytes were used.

    Attributes:
        first_head: Of the rows, counted in the whole model.
        data: [heads, row_bytes].
    """

    first_head: int
    data: NDArray[np.uint8]
    segment: SegmentMap
    slot: int
    number: int

    def is_intact(self) -> bool:
        """Returns whether the slot still has the block."""
        return self.segment.number(self.slot) == self.number


class _Follower:
    """One segment, and where the names in it are."""

    def __init__(self, segment: SegmentMap) -> None:
        self.segment = segment
        self.slots: dict[bytes, tuple[int, int]] = {}  # name -> slot, number
        self._names: dict[int, bytes] = {}  # slot -> name
        self._seen = np.zeros(segment.shape.slots, np.uint64)
        self._count = 0
        self._unmapped, self._mapped = 0, 0  # slots below these have a block, and are mapped here

    def follow(self) -> None:
        """Takes note of what was written since the last call."""
        count = self.segment.count
        if count == self._count:
            return
        self._count = count
        numbers = self.segment.numbers.copy()
        for slot in np.flatnonzero(numbers != self._seen).tolist():
            number = int(numbers[slot])
            name = self.segment.name(slot)
            if not number or self.segment.number(slot) != number:
                continue  # it is being written: noted when it is published
            self._note(slot, name, number)

    def _note(self, slot: int, name: bytes, number: int) -> None:
        old = self._names.get(slot)
        if old is not None and self.slots.get(old, (-1, 0))[0] == slot:
            del self.slots[old]
        self._names[slot], self._seen[slot] = name, number
        self.slots[name] = slot, number
        self._unmapped = max(self._unmapped, slot + 1)

    def find(self, name: bytes) -> tuple[int, int] | None:
        """Returns slot and number of a block that is there now."""
        found = self.slots.get(name)
        if found is None:
            return None
        slot, number = found
        if self.segment.numbers[slot] != number or self.segment.revoked[slot]:
            return None
        return found

    def map_next(self) -> bool:
        """Maps some of the slots that were written and not mapped; returns whether there are more."""
        shape = self.segment.shape
        stop = min(self._unmapped, self._mapped + max(1, _MAP_BYTES // shape.slot_bytes))
        if stop > self._mapped:
            begin = shape.slot_at(self._mapped)
            map_pages(self.segment.address + begin, shape.slot_at(stop) - begin)
            self._mapped = stop
        return self._mapped < self._unmapped


class HostPool:
    """All segments of a directory that this user wrote.

    Args:
        directory: Of the host tier, checked by `open_directory`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._followers: dict[str, _Follower] = {}
        self._unused: dict[str, int] = {}  # name of a file that is no segment -> its inode

    @property
    def num_segments(self) -> int:
        """Segments that are read."""
        return len(self._followers)

    @property
    def num_bytes(self) -> int:
        """Bytes that all of them may take."""
        return sum(one.segment.shape.num_bytes for one in self._followers.values())

    def refresh(self) -> None:
        """Takes note of new segments and blocks; forgets segments that are gone."""
        seen = set()
        try:
            with os.scandir(self._directory) as entries:
                files = [(one.name, one.inode()) for one in entries if one.name.endswith(SUFFIX)]
        except OSError:
            files = []
        for name, inode in files:
            seen.add(name)
            known = self._followers.get(name)
            if (known is None or known.segment.inode != inode) and self._unused.get(name) != inode:
                self._open(name, inode)
        for name in self._followers.keys() - seen:
            del self._followers[name]
        self._unused = {name: inode for name, inode in self._unused.items() if name in seen}
        for follower in self._followers.values():
            follower.follow()

    def count(self, names: Sequence[bytes], num_heads: int) -> int:
        """Returns how many leading blocks are there with all `num_heads` heads of the model."""
        for count, name in enumerate(names):
            heads = set[int]()
            for follower in self._followers.values():
                if follower.find(name) is not None:
                    heads.update(follower.segment.shape.heads)
                    if len(heads) >= num_heads:
                        break
            if len(heads) < num_heads:
                return count
        return len(names)

    def rows(self, name: bytes, heads: range) -> list[HostRows] | None:
        """Returns these heads of a block, in their order; None if one is not there."""
        parts, head = list[HostRows](), heads.start
        while head < heads.stop:
            for follower in self._followers.values():
                own = follower.segment.shape.heads
                if head in own and (found := follower.find(name)) is not None:
                    break
            else:
                return None
            stop = min(heads.stop, own.stop)
            rows = follower.segment.rows[found[0], head - own.start : stop - own.start]
            parts.append(HostRows(head, rows, follower.segment, *found))
            head = stop
        return parts

    def map_next(self) -> bool:
        """Maps some of what was written into this process, so that a copy of it causes no page faults.

        Returns:
            Whether there is more.
        """
        return any(follower.map_next() for follower in self._followers.values())

    def revoke(self, names: Sequence[bytes]) -> None:
        """Makes blocks unreadable for all groups of the host."""
        for follower in self._followers.values():
            for name in names:
                found = follower.slots.get(name)
                if found is not None and follower.segment.number(found[0]) == found[1]:
                    follower.segment.revoked[found[0]] = 1

    def _open(self, name: str, inode: int) -> None:
        self._followers.pop(name, None)
        try:
            fd = open_segment(self._directory / name)
        except OSError:
            return
        try:
            self._followers[name] = _Follower(SegmentMap(fd, read_shape(fd)))
        except (NotASegment, OSError, ValueError):
            self._unused[name] = inode
        finally:
            os.close(fd)
