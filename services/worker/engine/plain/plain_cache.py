"""The KV cache of one rank: for each layer the keys and values of all blocks, of this rank's heads.

Layers with a sliding window may have a pool of blocks of their own.

The leader decides which block belongs to which sequence; `batch_builder.py` computes the slots that a step
writes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.config.layer import LatentConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.gpu_kernels import GpuKernels, gpu_kernels
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import PoolSizes


class PlainLayerCache:
    """One layer's keys and values, each [slots, kv heads of this rank, head_dim]; slot = block * 16 + offset.

    Args:
        keys: Zeros at the start: a masked position may be read before it is written, and must be finite.
        values: The same.
        kernels: Those of the device that take heads of this size.

    Attributes:
        kernels: Compute in this cache on a GPU; None: torch operators do.
    """

    def __init__(self, keys: Tensor, values: Tensor, kernels: GpuKernels | None) -> None:
        self.keys, self.values, self.kernels = keys, values, kernels
        num_blocks = len(keys) // BLOCK_SIZE
        # the same memory, a row per block
        self._key_blocks = keys.view(num_blocks, -1)
        self._value_blocks = values.view(num_blocks, -1)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores [tokens, kv heads, head_dim] at those slots."""
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)

    def gather(self, blocks: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """Keys and values of those blocks, each [sequences, kv heads, blocks a sequence * 16, head_dim].

        Args:
            blocks: Block ids, [sequences * blocks a sequence].
            num_sequences: How many tables of one length are in `blocks`.
        """
        heads, dim = self.keys.shape[1:]
        shape = (num_sequences, -1, heads, dim)
        keys = self._key_blocks.index_select(0, blocks).view(shape)
        values = self._value_blocks.index_select(0, blocks).view(shape)
        return keys.transpose(1, 2), values.transpose(1, 2)


class LatentLayerCache(PlainLayerCache):
    """One layer's latent vectors and rotated key parts: keys [slots, 1, rank + rope_dim].

    The values are the keys' first `rank` numbers, in the same memory.
    """

    def __init__(self, keys: Tensor, latent: LatentConfig) -> None:
        self.kernels = None
        self.keys, self.values = keys, keys[..., : latent.rank]
        self._key_blocks = keys.view(len(keys) // BLOCK_SIZE, -1)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores [tokens, 1, rank + rope_dim] at those slots; the values are in the keys."""
        self.keys.index_copy_(0, slots, keys)

    def gather(self, blocks: Tensor, num_sequences: int) -> tuple[Tensor, Tensor]:
        """See `PlainLayerCache`: [sequences, 1, blocks a sequence * 16, rank + rope_dim], then rank."""
        width = self.keys.shape[-1]
        keys = self._key_blocks.index_select(0, blocks).view(num_sequences, -1, 1, width).transpose(1, 2)
        return keys, keys[..., : self.values.shape[-1]]


@dataclass(frozen=True, slots=True)
class LayerStack:
    """Layers of one shape and one pool, in one allocation: a block is copied in all of them at once.

    Attributes:
        layers: Their numbers in the model, ascending.
        sliding: They are those of the sliding layers' pool.
        keys: [layers, slots, kv heads of this rank, head_dim].
        values: The same; None with latent attention, whose keys hold the values.
    """

    layers: list[int]
    sliding: bool
    keys: Tensor
    values: Tensor | None


class KVCache:
    """All layers' caches of one rank, whose KV heads may be more than another's.

    Attributes:
        sizes: Blocks that plans may use. One more follows them in each pool, to which padding rows of a batch
            write.
        layers: The cache of each layer.
        stacks: The same memory, all layers of one kind together.
        sliding: For each layer whether its blocks are those of the sliding layers' pool.
    """

    def __init__(
        self, config: ModelConfig, sizes: PoolSizes, rank: int, world: int, placement: Placement = CPU
    ) -> None:
        heads = len(config.kv_heads_of(rank, world))
        self.sizes = sizes
        self.sliding = [window > 0 and sizes.num_sliding > 0 for window in config.windows]
        counts = [1 + (sizes.num_sliding if own else sizes.num_blocks) for own in self.sliding]
        alike: dict[tuple[LatentConfig | None, bool], list[int]] = {}
        for at, (layer, own) in enumerate(zip(config.layers, self.sliding, strict=True)):
            alike.setdefault((layer.attention.latent, own), []).append(at)
        found = gpu_kernels(placement)
        kernels = found if found and config.head_dim <= found.largest_head else None
        made: dict[int, PlainLayerCache] = {}
        self.stacks: list[LayerStack] = []
        for (latent, own), numbers in alike.items():
            slots = counts[numbers[0]] * BLOCK_SIZE
            if latent is not None:
                keys = _zeros((len(numbers), slots, 1, latent.rank + latent.rope_dim), placement)
                made |= {at: LatentLayerCache(one, latent) for at, one in zip(numbers, keys, strict=True)}
                self.stacks.append(LayerStack(numbers, own, keys, None))
                continue
            keys, values = (
                _zeros((len(numbers), slots, heads, config.head_dim), placement) for _ in range(2)
            )
            self.stacks.append(LayerStack(numbers, own, keys, values))
            for at, own_keys, own_values in zip(numbers, keys, values, strict=True):
                made[at] = PlainLayerCache(own_keys, own_values, kernels)
        self.layers = [made[at] for at in range(config.num_layers)]


def block_bytes(config: ModelConfig, rank: int, world: int, placement: Placement = CPU) -> int:
    """Memory of one block on that rank."""
    heads = len(config.cached_heads_of(rank, world))
    return placement.dtype.itemsize * BLOCK_SIZE * heads * config.cached_values


def sliding_bytes(config: ModelConfig, rank: int, world: int, placement: Placement = CPU) -> int:
    """The part of `block_bytes` in layers with a sliding window."""
    windowed = sum(window > 0 for window in config.windows)
    return block_bytes(config, rank, world, placement) * windowed // config.num_layers


def kv_format(config: ModelConfig, placement: Placement = CPU) -> str:
    """The name of the cache's type and layout, a part of the names of stored blocks."""
    return f"{placement.format}{'+latent' if config.latent else ''}"


def _zeros(shape: tuple[int, ...], placement: Placement) -> Tensor:
    if placement.on_gpu or placement.dtype != torch.float32:
        return torch.zeros(shape, dtype=placement.dtype, device=placement.device)
    # numpy's zeros come from the operating system: a page takes memory when it is first used
    return torch.from_numpy(np.zeros(shape, np.float32))
