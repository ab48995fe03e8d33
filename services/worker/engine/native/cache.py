"""The KV cache of one rank as the kernels read it: floats, halves, or fp8 beside one of these.

Of each block a KV head's keys lie as [head_dim][16 tokens], its values as [16 tokens][head_dim], both with
head_dim padded to whole registers. A layer with a cold zone has all blocks as fp8 codes with scales, and
*window slots* for the blocks that are read in full precision; `recent_window.py` assigns them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.cold_zone import SCALE_BYTES, ColdZone
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.structs.cache import ColdBlocks
from services.worker.engine.pages_ahead import PagesAhead
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import PoolSizes


@dataclass(frozen=True, slots=True)
class HeadShape:
    """One rank's heads."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def width(self) -> int:
        """Floats of a cached key or value: `dim` padded to whole registers."""
        return padded(self.dim)


def heads_of(config: ModelConfig, rank: int, world: int) -> HeadShape:
    """The heads of one rank."""
    return HeadShape(len(config.heads_of(rank, world)), len(config.kv_heads_of(rank, world)), config.head_dim)


@dataclass(frozen=True, slots=True)
class ColdLayerCache:
    """All blocks of a layer as codes.

    Attributes:
        keys: [blocks, kv heads, 16 * padded head_dim].
        values: The same.
        key_scales: [blocks, kv heads].
        value_scales: [blocks, kv heads].
        pointers: To these, for the kernels.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    pointers: ColdBlocks

    @classmethod
    def allocate(cls, num_blocks: int, heads: HeadShape, hot_blocks: int) -> "ColdLayerCache":
        """Zeros, for that many blocks."""
        shape = num_blocks, heads.kv_heads
        keys, values = (buffer(*shape, BLOCK_SIZE * heads.width, dtype=torch.uint8) for _ in range(2))
        key_scales, value_scales = (buffer(*shape) for _ in range(2))
        sides = keys, values, key_scales, value_scales
        return cls(*sides, ColdBlocks(*(side.data_ptr() for side in sides), hot_blocks))


@dataclass(frozen=True, slots=True)
class NativeLayerCache:
    """One layer's keys and values.

    Attributes:
        keys: [blocks, kv heads, 16 * padded head_dim]; with `cold` [window slots, ...].
        values: The same.
        cold: The compressed blocks of a layer with a cold zone.
        sliding: Its blocks are those of the layers with a sliding window, which have a pool of their own.
    """

    keys: Tensor
    values: Tensor
    cold: ColdLayerCache | None = None
    sliding: bool = False


class NativeCache:
    """All layers, zeros at the start.

    A window slot, like a block, takes memory from its first use on. There are as many as blocks, since each
    in use belongs to a block that one sequence fills; `ColdZone.window_slots` says how many will be used.
    """

    def __init__(
        self,
        windows: Sequence[int],
        sizes: PoolSizes,
        heads: HeadShape,
        dtype: torch.dtype,
        zone: ColdZone | None = None,
    ) -> None:
        self.sizes = sizes
        self.width = heads.width
        self.layers = [
            self._allocate(sizes, heads, dtype, window, zone if zone and zone.layers[index] else None)
            for index, window in enumerate(windows)
        ]
        self._pages, self._sliding_pages = (PagesAhead(self._buffers(sliding=s)) for s in (False, True))

    def use(self, last: int, last_sliding: int) -> None:
        """Announces the highest blocks in use, so that the next ones have memory in time; -1: none."""
        self._pages.use(last)
        self._sliding_pages.use(last_sliding)

    def _buffers(self, *, sliding: bool) -> list[Tensor]:
        """What the layers with such blocks hold, [blocks, ...] each; window slots are not among it."""
        found = list[Tensor]()
        for layer in self.layers:
            if layer.sliding == sliding:
                kept = layer if layer.cold is None else layer.cold
                found += kept.keys, kept.values
        return found

    @staticmethod
    def _allocate(
        sizes: PoolSizes, heads: HeadShape, dtype: torch.dtype, window: int, zone: ColdZone | None
    ) -> NativeLayerCache:
        sliding = window > 0 and sizes.num_sliding > 0
        count = sizes.num_sliding if sliding else sizes.num_blocks
        slots = count if zone is None else sizes.num_blocks  # window slots are the same in all layers
        keys, values = (
            buffer(slots, heads.kv_heads, BLOCK_SIZE * heads.width, dtype=dtype) for _ in range(2)
        )
        cold = None if zone is None else ColdLayerCache.allocate(count, heads, zone.hot_blocks)
        return NativeLayerCache(keys, values, cold, sliding)


def block_bytes(num_layers: int, heads: HeadShape, dtype: torch.dtype, cold: int = 0) -> int:
    """Memory of one block on one rank: keys and values of so many layers, `cold` of them with a cold zone."""
    numbers = BLOCK_SIZE * heads.width
    hot = (num_layers - cold) * numbers * dtype.itemsize
    return 2 * heads.kv_heads * (hot + cold * (numbers + SCALE_BYTES))


def hot_bytes(max_running: int, heads: HeadShape, dtype: torch.dtype, zone: ColdZone) -> int:
    """Memory of the window slots that so many sequences use, on one rank."""
    slot = 2 * heads.kv_heads * zone.num_layers * BLOCK_SIZE * heads.width * dtype.itemsize
    return zone.window_slots(max_running) * slot
