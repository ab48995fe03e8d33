"""The layout of a segment: the file in shared memory into which one rank writes its heads of KV blocks.

A segment is a ring of slots of one size. One process writes it; all others of the same user read it, so there
are no locks between processes and a process that dies or stops at any point blocks no other. A slot is valid
while its `number` is that of its last write: the writer sets it to 0 before it changes the slot
and to the new number after that. Readers compare it before and after they copied, and check the checksums
that each row carries (`kv_values.py`), so a slot that is overwritten meanwhile or half written is not used.

The file: a header of one page; the slots' numbers; a byte for each slot that is not 0 if its block is not to
be read any more; the blocks' names; the slots, from a page on, each with a row for each head. Slots get
memory when the writer comes to them, and nothing reads a slot before.
"""

import mmap
import os
import stat
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shared.kv_hash import NAME_BYTES

MAGIC: Final = b"ryzhost2"
SUFFIX: Final = ".kv"
NEW_SUFFIX: Final = ".new"  # of a segment that is being made
PAGE: Final = 4096
RECORD_BYTES: Final = 8 + 1 + NAME_BYTES
_HEADER = struct.Struct("<8sIIII")
_COUNT_AT = 64  # byte of the header
MAX_SLOTS: Final = 2**16  # readers compare all numbers when one has changed: some 20 us


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

    def slot_at(self, slot: int) -> int:
        """Returns where a slot begins in the file."""
        return self.first_slot_at + slot * self.slot_bytes

    def pack(self) -> bytes:
        """Returns the header."""
        return _HEADER.pack(MAGIC, self.slots, self.first_head, self.num_heads, self.row_bytes)


class SegmentMap:
    """A mapped segment, as writer and readers use it. The mapping ends with the object.

    Attributes:
        address: Of the file's first byte in this process.
        numbers: Of the slots' blocks in the order of writing, from 1; 0: a slot is not valid.
        revoked: Not 0: a slot's block is not to be read any more.
        names: Of the slots' blocks, [slots, NAME_BYTES].
        rows: Of the slots, [slots, heads, row_bytes].
    """

    def __init__(self, fd: int, shape: SegmentShape) -> None:
        self.shape = shape
        self.inode = os.fstat(fd).st_ino
        memory = mmap.mmap(fd, shape.num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        whole = np.frombuffer(memory, np.uint8)
        self.address: int = whole.ctypes.data
        self._count = whole[_COUNT_AT : _COUNT_AT + 8].view(np.uint64)
        slots, names_at = shape.slots, PAGE + 9 * shape.slots
        self.numbers: NDArray[np.uint64] = whole[PAGE : PAGE + 8 * slots].view(np.uint64)
        self.revoked: NDArray[np.uint8] = whole[PAGE + 8 * slots : names_at]
        self.names: NDArray[np.uint8] = whole[names_at : names_at + NAME_BYTES * slots].reshape(slots, -1)
        self.rows: NDArray[np.uint8] = whole[shape.first_slot_at :].reshape(slots, shape.num_heads, -1)

    @property
    def count(self) -> int:
        """A number that is another one when a block was published."""
        return int(self._count[0])

    def number(self, slot: int) -> int:
        """Returns the number of a slot's block."""
        return int(self.numbers[slot])

    def name(self, slot: int) -> bytes:
        """Returns the name of a slot's block."""
        name: bytes = self.names[slot].tobytes()
        return name

    def retire(self, slot: int) -> None:
        """Makes a slot invalid before it is written."""
        self.numbers[slot] = 0

    def publish(self, slot: int, number: int, name: bytes) -> None:
        """Makes a written slot valid."""
        self.names[slot] = np.frombuffer(name, np.uint8)
        self.revoked[slot] = 0
        self.numbers[slot] = number
        self._count[0] = number


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
