"""The layout of a segment: the file in shared memory into which one rank writes its heads of KV blocks.

A segment is a ring of slots of one size. One process writes it; all others of the same user read it, so there
are no locks between processes and a process that dies or stops in any place blocks no other. A slot is valid
while its `number` is its place in the order of writing: the writer sets it to 0 before it changes the slot
and to the new number after that. Readers compare it before and after they copied, and check the checksums
that each row carries (`kv_values.py`), so a slot that is overwritten meanwhile or half written is not used.

The file: a header of one page; a record for each slot; the slots, each with a row for each head.
"""

import mmap
import os
import stat
import struct
from dataclasses import dataclass
from typing import Final

from shared.kv_hash import NAME_BYTES

MAGIC: Final = b"ryzhost1"
SUFFIX: Final = ".kv"
NEW_SUFFIX: Final = ".new"  # of a segment that is being made
PAGE: Final = 4096
RECORD_BYTES: Final = 64
WORDS: Final = RECORD_BYTES // 8
REVOKED: Final = 1  # word of a record: not 0 if its block is not to be read any more
_NAME_AT: Final = 16  # byte of a record
_HEADER = struct.Struct("<8sIIII")
MAX_SLOTS: Final = 2**22


class NotASegment(Exception):
    """A file of the host tier is not used; the text says why."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """What a segment holds.

    Attributes:
        slots: Blocks that it has room for.
        first_head: The lowest KV head of its rows, counted in the whole model.
        num_heads: Rows of a slot.
        row_bytes: Of a head of a block with its header.
    """

    slots: int
    first_head: int
    num_heads: int
    row_bytes: int

    @classmethod
    def within(cls, num_bytes: int, heads: range, row_bytes: int) -> "SegmentShape":
        """Returns the largest shape that takes at most `num_bytes`; it may have no slot."""
        each = RECORD_BYTES + max(1, len(heads) * row_bytes)
        slots = max(0, (num_bytes - 2 * PAGE) // each)
        return cls(min(slots, MAX_SLOTS), heads.start, len(heads), row_bytes)

    @property
    def heads(self) -> range:
        """The KV heads of its rows."""
        return range(self.first_head, self.first_head + self.num_heads)

    @property
    def slot_bytes(self) -> int:
        """Bytes of all rows of a block."""
        return self.num_heads * self.row_bytes

    @property
    def first_slot_at(self) -> int:
        """Where the first slot begins in the file; slots begin at a page."""
        return PAGE + -(-self.slots * RECORD_BYTES // PAGE) * PAGE

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self.first_slot_at + self.slots * self.slot_bytes

    def pack(self) -> bytes:
        """Returns the header."""
        return _HEADER.pack(MAGIC, self.slots, self.first_head, self.num_heads, self.row_bytes)


class SegmentMap:
    """A mapped segment, as writer and readers use it. The mapping ends with the object.

    Attributes:
        shape: Of the segment.
        inode: Of its file.
    """

    def __init__(self, fd: int, shape: SegmentShape, *, populate: bool = False) -> None:
        self.shape = shape
        self.inode = os.fstat(fd).st_ino
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        self._memory = mmap.mmap(fd, shape.num_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes = memoryview(self._memory)
        self._records = self._bytes[PAGE : PAGE + shape.slots * RECORD_BYTES].cast("Q")

    def number(self, slot: int) -> int:
        """Returns the number of a slot's block in the order of writing, from 1; 0: it is not valid."""
        return self._records[slot * WORDS]

    def name(self, slot: int) -> bytes:
        """Returns the name in a slot's record."""
        at = PAGE + slot * RECORD_BYTES + _NAME_AT
        return bytes(self._bytes[at : at + NAME_BYTES])

    def is_revoked(self, slot: int) -> bool:
        """Returns whether the block of a slot is not to be read any more."""
        return self._records[slot * WORDS + REVOKED] != 0

    def revoke(self, slot: int) -> None:
        """Makes a slot's block unreadable for all; any process may do it."""
        self._records[slot * WORDS + REVOKED] = 1

    def retire(self, slot: int) -> None:
        """Makes a slot invalid before it is written."""
        self._records[slot * WORDS] = 0

    def publish(self, slot: int, number: int, name: bytes) -> None:
        """Makes a written slot valid."""
        at = PAGE + slot * RECORD_BYTES + _NAME_AT
        self._bytes[at : at + NAME_BYTES] = name
        self._records[slot * WORDS + REVOKED] = 0
        self._records[slot * WORDS] = number

    def rows(self, slot: int) -> memoryview:
        """Returns the bytes of all rows of a slot."""
        at = self.shape.first_slot_at + slot * self.shape.slot_bytes
        return self._bytes[at : at + self.shape.slot_bytes]

    def row(self, slot: int, head: int) -> memoryview:
        """Returns the bytes of one head, counted in the whole model."""
        at = self.shape.first_slot_at + slot * self.shape.slot_bytes
        at += (head - self.shape.first_head) * self.shape.row_bytes
        return self._bytes[at : at + self.shape.row_bytes]


def read_shape(fd: int) -> SegmentShape:
    """Reads the header of an open file.

    Raises:
        NotASegment: The file is of another user, open to others, or no whole segment.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise NotASegment("it is not a file of this user alone")
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        raise NotASegment("it has no header")
    magic, slots, first_head, num_heads, row_bytes = _HEADER.unpack(header)
    shape = SegmentShape(slots, first_head, num_heads, row_bytes)
    if magic != MAGIC or not 0 < slots <= MAX_SLOTS or not num_heads or not row_bytes:
        raise NotASegment("its header is not one of this version")
    if shape.num_bytes != found.st_size:
        raise NotASegment(f"it has {found.st_size} bytes, where its header says {shape.num_bytes}")
    return shape
