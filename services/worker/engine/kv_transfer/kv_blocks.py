"""The KV heads that a rank writes to the store, and the blocks of the plain cache as bytes."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.rank_protocol.plan import BLOCK_SIZE


def written_heads(config: ModelConfig, rank: int, world: int) -> range:
    """The KV heads that this rank has and no lower one; none if a lower rank has the same head."""
    heads = config.cached_heads_of(rank, world)
    repeated = rank > 0 and config.cached_heads_of(rank - 1, world) == heads
    return range(heads.start, heads.start) if repeated else heads


class PlainBlocks:
    """See `CacheBlocks` for the contract.

    On a GPU a block is one copy between it and the CPU, and two for each stack of layers there. More of them
    would be slow: after each one this thread waits for the interpreter, which steps hold meanwhile.
    """

    def __init__(self, cache: KVCache, config: ModelConfig, rank: int, world: int) -> None:
        self.heads = config.cached_heads_of(rank, world)
        self.writes = written_heads(config, rank, world)
        self._cache = cache
        self._dtype = cache.layers[0].keys.dtype
        self._device = cache.layers[0].keys.device
        self._parts = _parts(cache)
        self.head_bytes = BLOCK_SIZE * config.cached_values * self._dtype.itemsize

    def copy_out(self, block: int, out: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        if not self.writes:
            return
        own = slice(0, len(self.writes))
        assert sliding >= 0 or not self._cache.sizes.num_sliding, "a block is copied in all layers"
        found: dict[int, Tensor] = {}
        for part in self._parts:
            layers = part.block(sliding if part.sliding else block, own).flatten(2)
            found |= dict(zip(part.begins, layers, strict=True))
        # [heads, layers * (keys, values)]
        numbers = torch.cat([found[begin] for begin in sorted(found)], dim=1)
        out[:, : self.head_bytes] = numbers.cpu().view(torch.uint8).numpy()

    def copy_in(self, block: int, first: int, rows: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        if not len(rows):
            return
        at = first - self.heads.start
        own = slice(at, at + len(rows))
        # a copy, since received bytes need not be aligned
        numbers = torch.from_numpy(rows[:, : self.head_bytes].copy()).view(self._dtype).to(self._device)
        for part in self._parts:
            if part.sliding and sliding < 0:
                continue
            target = part.block(sliding if part.sliding else block, own)
            size = target.shape[2] * target.shape[3]
            layers = torch.stack([numbers[:, begin : begin + size] for begin in part.begins])
            target.copy_(layers.view(target.shape))


@dataclass(frozen=True, slots=True)
class _Part:
    """The keys or the values of a stack of layers.

    Attributes:
        sliding: The stack is of the sliding layers' pool.
        side: [layers, slots, heads, numbers].
        begins: Where each layer begins in the numbers of a head.
        tokens_last: The stored order within a head is [numbers][16 tokens], else [16 tokens][numbers].
    """

    sliding: bool
    side: Tensor
    begins: list[int]
    tokens_last: bool

    def block(self, block: int, heads: slice) -> Tensor:
        """A block in place: [layers, heads, numbers, 16] or [layers, heads, 16, numbers], as it is stored."""
        slots = self.side[:, block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE, heads]
        return slots.permute(0, 2, 3, 1) if self.tokens_last else slots.permute(0, 2, 1, 3)


def _parts(cache: KVCache) -> list[_Part]:
    """The sides of all stacks, with their offsets in a head's numbers: layer by layer keys, then values."""
    widths = [0] * len(cache.layers)
    for stack in cache.stacks:
        sides = [side for side in (stack.keys, stack.values) if side is not None]
        for layer in stack.layers:
            widths[layer] = sum(BLOCK_SIZE * side.shape[-1] for side in sides)
    begins = list(accumulate(widths, initial=0))
    parts: list[_Part] = []
    for stack in cache.stacks:
        own = [begins[layer] for layer in stack.layers]
        parts.append(_Part(stack.sliding, stack.keys, own, tokens_last=stack.values is not None))
        if stack.values is not None:
            behind = [begin + BLOCK_SIZE * stack.keys.shape[-1] for begin in own]
            parts.append(_Part(stack.sliding, stack.values, behind, tokens_last=False))
    return parts
