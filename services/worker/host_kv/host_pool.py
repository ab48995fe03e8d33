"""Reads the segments of all ranks of a host: which blocks are there, and the bytes of a head.

A reader follows each ring by the numbers of its slots and remembers where a name was seen last; the slot
itself is checked whenever it is used. For one thread.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from services.worker.host_kv.pool_directory import open_segment
from services.worker.host_kv.segment import SUFFIX, NotASegment, SegmentMap, read_shape


class HostRow(NamedTuple):
    """A head of a block in a segment; valid if `is_intact()` after the bytes were used."""

    data: memoryview
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
        self._last = 0

    def follow(self) -> None:
        """Takes note of what was written since the last call."""
        segment, slots = self.segment, self.segment.shape.slots
        for _ in range(slots if self._last else 0):
            slot = (self._last + 1) % slots
            number = segment.number(slot)
            if number > self._last + 1:
                break  # the writer went around
            if number <= self._last:
                return
            self._note(slot)
            self._last = number
        for slot in range(slots):
            self._note(slot)
        self._last = max((number for _, number in self.slots.values()), default=0)

    def _note(self, slot: int) -> None:
        number = self.segment.number(slot)
        if not number:
            return
        old = self._names.get(slot)
        if old is not None and self.slots.get(old, (-1, 0))[0] == slot:
            del self.slots[old]
        name = self.segment.name(slot)
        self._names[slot] = name
        self.slots[name] = slot, number

    def find(self, name: bytes) -> tuple[int, int] | None:
        """Returns slot and number of a block that is there now."""
        found = self.slots.get(name)
        if found is None:
            return None
        slot, number = found
        if self.segment.number(slot) != number or self.segment.is_revoked(slot):
            return None
        return found


class HostPool:
    """All segments of a directory that this user wrote.

    Args:
        directory: Of the host tier, checked by `open_directory`.
        reads_rows: Map all pages of a segment when it is opened; one by one that takes longer than a copy.
    """

    def __init__(self, directory: Path, *, reads_rows: bool = False) -> None:
        self._directory = directory
        self._reads_rows = reads_rows
        self._followers: dict[str, _Follower] = {}
        self._unused: dict[str, int] = {}  # name of a file that is no segment -> its inode

    @property
    def num_segments(self) -> int:
        """Segments that are read."""
        return len(self._followers)

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
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
            if len(heads) < num_heads:
                return count
        return len(names)

    def rows(self, name: bytes, heads: range) -> list[HostRow] | None:
        """Returns these heads of a block; None if one is not there."""
        rows: dict[int, HostRow] = {}
        for follower in self._followers.values():
            found = follower.find(name)
            if found is not None:
                segment = follower.segment
                for head in heads:
                    if head not in rows and head in segment.shape.heads:
                        rows[head] = HostRow(segment.row(found[0], head), segment, *found)
                if len(rows) == len(heads):
                    return [rows[head] for head in heads]
        return None

    def revoke(self, names: Sequence[bytes]) -> None:
        """Makes blocks unreadable for all groups of the host."""
        for follower in self._followers.values():
            for name in names:
                found = follower.slots.get(name)
                if found is not None and follower.segment.number(found[0]) == found[1]:
                    follower.segment.revoke(found[0])

    def _open(self, name: str, inode: int) -> None:
        self._followers.pop(name, None)
        try:
            fd = open_segment(self._directory / name)
        except OSError:
            return
        try:
            self._followers[name] = _Follower(SegmentMap(fd, read_shape(fd), populate=self._reads_rows))
        except (NotASegment, OSError, ValueError):
            self._unused[name] = inode
        finally:
            os.close(fd)
