"""The KV cache of one rank as the kernels read it: floats, or half-precision floats.

Of each block a KV head's keys lie as [head_dim][16 tokens], its values as [16 tokens][head_dim], both with
head_dim padded to whole registers.
"""

import torch
from torch import Tensor

from services.worker.domain.plan import BLOCK_SIZE
from services.worker.engine.native.packed import buffer
from services.worker.engine.native.program import HeadShape


class NativeCache:
    """layers: each layer's keys and values, zeros at the start, [blocks, kv heads, 16 * padded head_dim]."""

    def __init__(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: torch.dtype) -> None:
        shape = (num_blocks, heads.kv_heads, BLOCK_SIZE * heads.width)
        self.num_blocks = num_blocks
        self.width = heads.width
        self.layers: list[tuple[Tensor, Tensor]] = [
            (buffer(*shape, dtype=dtype), buffer(*shape, dtype=dtype)) for _ in range(num_layers)
        ]


def block_bytes(num_layers: int, heads: HeadShape, dtype: torch.dtype) -> int:
    """Memory of one block on one rank: keys and values."""
    return 2 * dtype.itemsize * num_layers * heads.kv_heads * BLOCK_SIZE * heads.width
