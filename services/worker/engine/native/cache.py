"""The KV cache of one rank as the kernels read it: floats, halves, or fp8 beside one of these.

A block of a pool is its keys and values of all layers that have such blocks, one layer after another. A KV
head's keys lie as [head_dim][16 tokens], its values as [16 tokens][head_dim], both with head_dim padded to
whole registers. A layer with a cold zone has all blocks as fp8 codes with scales, and *window slots* for the
blocks that are read in full precision; `recent_window.py` assigns them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.cold_zone import SCALE_BYTES, ColdZone
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.structs.cache import ColdBlocks
from services.worker.engine.pool_memory import PoolMemory
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
    def allocate(cls, keys: Tensor, values: Tensor, hot_blocks: int) -> "ColdLayerCache":
        """The layer with these codes, and scales of zero."""
        key_scales, value_scales = (buffer(*keys.shape[:2]) for _ in range(2))
        sides = keys, values, key_scales, value_scales
        pointers = ColdBlocks(*(side.data_ptr() for side in sides), hot_blocks, keys.stride(0))
        return cls(*sides, pointers)


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
        sliding = [window > 0 and sizes.num_sliding > 0 for window in windows]
        cold = [zone is not None and zone.layers[index] for index in range(len(windows))]
        types = [torch.uint8 if is_cold else dtype for is_cold in cold]
        self.pools, sides = [], dict[int, tuple[Tensor, Tensor]]()
        for own, count in ((False, sizes.num_blocks), (True, sizes.num_sliding)):
            numbers = [index for index, in_pool in enumerate(sliding) if in_pool == own]
            made, found = _pool(count, heads, [types[index] for index in numbers])
            self.pools.append(made)
            sides.update(zip(numbers, found, strict=True))
        self.layers: list[NativeLayerCache] = []
        for index, own in enumerate(sliding):
            keys, values = sides[index]
            codes = None
            if zone is not None and cold[index]:
                codes = ColdLayerCache.allocate(keys, values, zone.hot_blocks)
                # window slots are the same in all layers
                shape = sizes.num_blocks, heads.kv_heads, BLOCK_SIZE * heads.width
                keys, values = (buffer(*shape, dtype=dtype) for _ in range(2))
            self.layers.append(NativeLayerCache(keys, values, codes, own))

    @property
    def vacated_bytes(self) -> tuple[int, int]:
        """Memory of a block and of a sliding block in their pools."""
        return self.pools[0].block_bytes, self.pools[1].block_bytes

    def vacate(self, ranges: Sequence[tuple[int, int]], sliding_ranges: Sequence[tuple[int, int]]) -> None:
        """Gives the system the memory of blocks without content, in ranges (first, end)."""
        for pool, found in zip(self.pools, (ranges, sliding_ranges), strict=True):
            for first, end in found:
                pool.give_back(first, end)

    def use(self, last: int, last_sliding: int) -> None:
        """Announces the highest blocks in use, so that the next ones have memory in time; -1: none."""
        self.pools[0].use(last)
        self.pools[1].use(last_sliding)


def _pool(
    count: int, heads: HeadShape, types: Sequence[torch.dtype]
) -> tuple[PoolMemory, list[tuple[Tensor, Tensor]]]:
    """A pool of blocks of layers with such types; keys and values of each, as in `NativeLayerCache`."""
    sizes = [heads.kv_heads * BLOCK_SIZE * heads.width * kind.itemsize for kind in types for _ in range(2)]
    memory = PoolMemory(count, sum(sizes))
    parts = [
        part.view(count, heads.kv_heads, size // heads.kv_heads)
        for part, size in zip(torch.split(memory.bytes, sizes, dim=1), sizes, strict=True)
    ]
    return memory, [
        (parts[2 * index].view(kind), parts[2 * index + 1].view(kind)) for index, kind in enumerate(types)
    ]


def block_bytes(num_layers: int, heads: HeadShape, dtype: torch.dtype, cold: int = 0) -> int:
    """Memory of one block on one rank: keys and values of so many layers, `cold` of them with a cold zone."""
    numbers = BLOCK_SIZE * heads.width
    hot = (num_layers - cold) * numbers * dtype.itemsize
    return 2 * heads.kv_heads * (hot + cold * (numbers + SCALE_BYTES))


def hot_bytes(max_running: int, heads: HeadShape, dtype: torch.dtype, zone: ColdZone) -> int:
    """Memory of the window slots that so many sequences use, on one rank."""
    slot = 2 * heads.kv_heads * zone.num_layers * BLOCK_SIZE * heads.width * dtype.itemsize
    return zone.window_slots(max_running) * slot
