"""The KV cache of one rank as the kernels read it: floats, halves, or fp8 beside some of these.

Of each block a KV head's keys lie as [head_dim][16 tokens], its values as [16 tokens][head_dim], both with
head_dim padded to whole registers. A layer with a cold zone has all blocks as fp8 codes with scales, and
*places* for the blocks that are read in full precision; which block has which place is known to `zones.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.cold_zone import SCALE_BYTES, ColdZone
from services.worker.engine.native.library import Cold
from services.worker.engine.native.packed_weights import buffer
from services.worker.engine.native.program import HeadShape
from services.worker.rank_protocol.plan import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class ColdLayer:
    """All blocks of a layer as codes, [blocks, kv heads, 16 * padded head_dim], scales [blocks, kv heads]."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    pointers: Cold

    @classmethod
    def make(cls, num_blocks: int, heads: HeadShape, hot_blocks: int) -> "ColdLayer":
        """Zeros, for that many blocks."""
        shape = num_blocks, heads.kv_heads
        keys, values = (buffer(*shape, BLOCK_SIZE * heads.width, dtype=torch.uint8) for _ in range(2))
        key_scales, value_scales = (buffer(*shape) for _ in range(2))
        sides = keys, values, key_scales, value_scales
        pointers = Cold(*(side.data_ptr() for side in sides), hot_blocks)
        pointers.owner = sides
        return cls(*sides, pointers)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """A layer's keys and values, [blocks, kv heads, 16 * padded head_dim]; with `cold` places for blocks."""

    keys: Tensor
    values: Tensor
    cold: ColdLayer | None = None


class NativeCache:
    """All layers, zeros at the start.

    A place costs memory from its first use on (so does a block), and those in use are never more than blocks,
    since each belongs to a block that one sequence fills; `ColdZone.places` says how many there will be.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        heads: HeadShape,
        dtype: torch.dtype,
        zone: ColdZone | None = None,
    ) -> None:
        shape = (num_blocks, heads.kv_heads, BLOCK_SIZE * heads.width)
        self.num_blocks = num_blocks
        self.width = heads.width
        self.layers = [
            LayerCache(
                buffer(*shape, dtype=dtype),
                buffer(*shape, dtype=dtype),
                ColdLayer.make(num_blocks, heads, zone.hot_blocks) if zone and zone.layers[index] else None,
            )
            for index in range(num_layers)
        ]


def block_bytes(num_layers: int, heads: HeadShape, dtype: torch.dtype, zone: ColdZone | None = None) -> int:
    """Memory of one block on one rank: keys and values, compressed in layers with a cold zone."""
    cold = zone.num_layers if zone else 0
    numbers = BLOCK_SIZE * heads.width
    hot = (num_layers - cold) * numbers * dtype.itemsize
    return 2 * heads.kv_heads * (hot + cold * (numbers + SCALE_BYTES))


def hot_bytes(max_running: int, heads: HeadShape, dtype: torch.dtype, zone: ColdZone) -> int:
    """Memory of the places that so many sequences use, on one rank."""
    place = 2 * heads.kv_heads * zone.num_layers * BLOCK_SIZE * heads.width * dtype.itemsize
    return zone.places(max_running) * place
