"""The rank's side of the host tier: copies blocks into its segment, and reads those of all ranks of the host.

Rows have the format of the store's fields (`kv_values.py`), never compressed, so a block that is read here is
checked as one from the store, and the store is written from the same bytes.
"""

from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from services.worker.engine.kv_transfer.kv_values import (
    HEADER_BYTES,
    BlockDecoder,
    BlockEncoder,
    DamagedBlock,
)
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.host_kv.host_pool import HostPool
from services.worker.host_kv.pool_directory import UnsafeDirectory, open_directory
from services.worker.host_kv.segment import NotASegment, SegmentShape
from services.worker.host_kv.segment_writer import SegmentWriter, Slot
from services.worker.rank_protocol.kv_messages import KVStoreConfig, StoreBlock

log = structlog.get_logger(__name__)


class HostCopy(NamedTuple):
    """A block in the own segment: its slot, and its rows, [heads, HEADER_BYTES + head_bytes]."""

    slot: Slot
    rows: NDArray[np.uint8]


class HostCopies:
    """Writes blocks into a segment. `copy` is for the thread of the steps, all others for any."""

    def __init__(self, segment: SegmentWriter, blocks: CacheBlocks) -> None:
        self._segment = segment
        self._blocks = blocks
        self._encoder = BlockEncoder("none")

    @property
    def num_slots(self) -> int:
        """Blocks that the segment has room for."""
        return self._segment.shape.slots

    def copy(self, order: StoreBlock) -> HostCopy | None:
        """Copies a block, which all groups of the host can read when this returns.

        Returns:
            The copy, whose bytes stay until `release`; None if the oldest block is still in use.
        """
        slot = self._segment.lend()
        if slot is None:
            return None
        rows = slot.rows
        try:
            self._blocks.copy_out(order.block, rows[:, HEADER_BYTES:], order.sliding)
            for row, head in zip(rows, self._blocks.writes, strict=True):
                self._encoder.encode(row, order.name, head)
        except BaseException:
            self._segment.discard(slot)
            raise
        self._segment.publish(slot, order.name)
        return HostCopy(slot, rows)

    def release(self, copy: HostCopy) -> None:
        """Lets the bytes be overwritten when their turn comes."""
        self._segment.release(copy.slot)

    def reserve_ahead(self) -> bool:
        """Reserves memory that the next copies need; returns whether there is more to do."""
        return self._segment.reserve_ahead()


class HostReads:
    """Copies blocks of the host's segments into the cache. For one thread."""

    def __init__(self, pool: HostPool, blocks: CacheBlocks) -> None:
        self._pool = pool
        self._blocks = blocks
        self._decoder = BlockDecoder(blocks.head_bytes)

    def refresh(self) -> None:
        """Takes note of what was written since the last fetch."""
        self._pool.refresh()

    def copy_in(self, name: bytes, block: int, sliding: int) -> int:
        """Copies all heads of a block; returns its bytes, or 0 if the host does not have it intact.

        With 0 the block of the cache may hold anything.
        """
        found = self._pool.rows(name, self._blocks.heads)
        if found is None:
            return 0
        try:
            for part in found:
                self._decoder.check_rows(part.data, name, part.first_head)
                self._blocks.copy_in(block, part.first_head, part.data[:, HEADER_BYTES:], sliding)
        except DamagedBlock:
            return 0
        # after the copies: none of these slots was overwritten meanwhile
        intact = all(part.is_intact() for part in found)
        return sum(part.data.size for part in found) if intact else 0

    def map_ahead(self) -> bool:
        """Maps blocks that were written on the host; returns whether there is more to do."""
        self._pool.refresh()
        return self._pool.map_next()


def open_copies(config: KVStoreConfig, blocks: CacheBlocks) -> HostCopies | None:
    """Opens this rank's segment; None if there is no host tier, or it cannot be used, which is logged."""
    if not config.host_dir or not blocks.writes:
        return None
    shape = SegmentShape.within(config.host_bytes, blocks.writes, HEADER_BYTES + blocks.head_bytes)
    try:
        return HostCopies(SegmentWriter(config.host_dir, config.host_owner, shape), blocks)
    except (NotASegment, UnsafeDirectory, OSError) as error:
        log.warning("no KV blocks are kept in the host's memory", why=str(error))
        return None


def open_reads(config: KVStoreConfig, blocks: CacheBlocks) -> HostReads | None:
    """Opens the host's segments for reading; None if there is no host tier."""
    if not config.host_dir or not blocks.heads:
        return None
    try:
        return HostReads(HostPool(open_directory(config.host_dir)), blocks)
    except (UnsafeDirectory, OSError):
        return None  # `open_copies` has logged why
