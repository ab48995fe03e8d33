"""The KV heads that a rank writes to the store, and the blocks of the plain cache as bytes."""

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.rank_protocol.plan import BLOCK_SIZE


def written_heads(config: ModelConfig, rank: int, world: int) -> range:
    """The KV heads that this rank has and no lower one; none if a lower rank has the same head."""
    heads = config.cached_heads_of(rank, world)
    repeated = rank > 0 and config.cached_heads_of(rank - 1, world) == heads
    return range(heads.start, heads.start) if repeated else heads


class PlainBlocks:
    """See `CacheBlocks` for the contract. On a GPU a block is one copy between it and the CPU."""

    def __init__(self, cache: KVCache, config: ModelConfig, rank: int, world: int) -> None:
        self.heads = config.cached_heads_of(rank, world)
        self.writes = written_heads(config, rank, world)
        self._cache = cache
        self._dtype = cache.layers[0].keys.dtype
        self.head_bytes = BLOCK_SIZE * config.cached_values * self._dtype.itemsize

    def copy_out(self, block: int, out: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        if not self.writes:
            return
        own = slice(0, len(self.writes))
        assert sliding >= 0 or not self._cache.sizes.num_sliding, "a block is copied in all layers"
        sides = [
            side[own].flatten(1)
            for layer, other in zip(self._cache.layers, self._cache.sliding, strict=True)
            for side in layer.block_sides(sliding if other else block)
        ]
        # [heads, layers * (keys, values)]
        out[:, : self.head_bytes] = torch.cat(sides, dim=1).cpu().view(torch.uint8).numpy()

    def copy_in(self, block: int, first: int, rows: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        for head, row in enumerate(rows, first):
            self._copy_head_in(block, head, row, sliding)

    def _copy_head_in(self, block: int, head: int, row: NDArray[np.uint8], sliding: int) -> None:
        at = self.heads.index(head)
        device = self._cache.layers[0].keys.device
        # a copy, since received bytes need not be aligned
        numbers = torch.from_numpy(row.copy()).view(self._dtype).to(device)
        for layer, other in zip(self._cache.layers, self._cache.sliding, strict=True):
            left_out = other and sliding < 0
            for side in layer.block_sides(0 if left_out else sliding if other else block):
                own, numbers = numbers[: side[at].numel()], numbers[side[at].numel() :]
                if not left_out:
                    side[at] = own.view(side[at].shape)
