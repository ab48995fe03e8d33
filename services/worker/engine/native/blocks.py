"""The blocks of the native cache: where the tokens of a pass go in them, and their bytes for the store.

The kernels copy the bytes.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.cold_zone import SCALE_BYTES
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.kv_transfer.kv_blocks import written_heads
from services.worker.engine.native.cache import NativeCache, NativeLayerCache
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.structs.cache import CachePointers, LayerPointers
from services.worker.rank_protocol.plan import BLOCK_SIZE

Ints = NDArray[np.int32]


class PassIndex:
    """The index arrays of one pass; spans are added in the order of its rows.

    Attributes:
        slots: Of each row, block * 16 + offset, [rows].
    """

    def __init__(self, rows: int) -> None:
        self.slots: Ints = np.empty(rows, np.int32)
        self._tables: list[NDArray[np.int64]] = []

    def add(self, blocks: NDArray[np.int64], row: int, start: int, count: int) -> None:
        """Adds a span: rows from `row` on are `count` tokens of a sequence from position `start` on.

        Args:
            blocks: Of the sequence, up to that of the last token.
            row: The first row.
            start: Position of the first token.
        """
        self._tables.append(blocks)
        if count == 1:
            self.slots[row] = blocks[-1] * BLOCK_SIZE + start % BLOCK_SIZE
        else:
            at = np.arange(start, start + count)
            self.slots[row : row + count] = blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE

    def table(self) -> Ints:
        """The blocks of all spans, one after another."""
        return np.concatenate(self._tables).astype(np.int32) if self._tables else np.empty(0, np.int32)


class NativeBlocks:
    """See `CacheBlocks` for the contract. In layers with a cold zone the codes are copied.

    A full block has codes from the pass that filled it, also while its sequence reads it in full precision.
    """

    def __init__(
        self, kernels: KernelLibrary, cache: NativeCache, config: ModelConfig, rank: int, world: int
    ) -> None:
        self.heads = config.kv_heads_of(rank, world)
        self.writes = written_heads(config, rank, world)
        self._kernels, self._cache = kernels, cache
        layers = [_pointers(layer) for layer in cache.layers]
        scales = 2 * SCALE_BYTES * sum(layer.cold is not None for layer in cache.layers)
        self.head_bytes = (
            sum(2 * BLOCK_SIZE * config.head_dim * layer.item_bytes for layer in layers) + scales
        )
        self._pointers = CachePointers(
            num_layers=len(layers),
            kv_heads=len(self.heads),
            dim=config.head_dim,
            width=cache.width,
            layers=(LayerPointers * len(layers))(*layers),
        )

    def copy_out(self, block: int, out: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        assert out.strides[-1] == 1
        self._check(block, sliding)
        assert sliding >= 0 or not self._cache.sizes.num_sliding, "a block is copied in all layers"
        self._kernels.copy_out(
            self._pointers, block, sliding, 0, len(self.writes), out.ctypes.data, out.strides[0]
        )

    def copy_in(self, block: int, first: int, rows: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        count, size = rows.shape
        assert size == self.head_bytes
        assert rows.strides[-1] == 1
        own = self.heads.index(first)
        assert own + count <= len(self.heads)
        self._check(block, sliding)
        self._cache.use(block, sliding)
        self._kernels.copy_in(self._pointers, block, sliding, own, count, rows.ctypes.data, rows.strides[0])

    def _check(self, block: int, sliding: int) -> None:
        sizes = self._cache.sizes
        assert 0 <= block < sizes.num_blocks, f"no block {block} of {sizes.num_blocks}"
        assert -1 <= sliding < max(1, sizes.num_sliding), f"no block {sliding} of {sizes.num_sliding}"


def _pointers(layer: NativeLayerCache) -> LayerPointers:
    cold = layer.cold
    if cold is None:
        return LayerPointers(
            keys=layer.keys.data_ptr(),
            values=layer.values.data_ptr(),
            item_bytes=layer.keys.itemsize,
            block_bytes=layer.keys.stride(0) * layer.keys.itemsize,
            sliding=layer.sliding,
        )
    return LayerPointers(
        keys=cold.keys.data_ptr(),
        values=cold.values.data_ptr(),
        key_scales=cold.key_scales.data_ptr(),
        value_scales=cold.value_scales.data_ptr(),
        item_bytes=1,
        block_bytes=cold.keys.stride(0),
        sliding=layer.sliding,
    )
