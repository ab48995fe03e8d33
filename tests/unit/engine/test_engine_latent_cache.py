"""The cache of latent attention: every rank has it, the first one stores it, and all read it."""

import numpy as np
import pytest
import torch

from services.worker.engine.config.layer import (
    AttentionConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.kv_transfer.kv_blocks import PlainBlocks
from services.worker.engine.plain.plain_cache import KVCache, block_bytes, kv_format
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import PoolSizes

NUM_BLOCKS, LAYERS = 4, 3
LATENT = LatentConfig(rank=24, query_rank=0, rope_dim=8, plain_dim=12, value_dim=10, eps=1e-6)
NORM = NormConfig(eps=1e-6)
LAYER = LayerConfig(
    attention=AttentionConfig(scale=1.0, rope=RopeConfig(dim=8), latent=LATENT),
    mlp=MlpConfig(inner=64),
    input_norm=NORM,
    mlp_norm=NORM,
)
CONFIG = ModelConfig(
    architecture="DeepseekV3ForCausalLM",
    vocab_size=203,
    hidden_size=64,
    num_heads=6,
    num_kv_heads=6,
    head_dim=20,
    context_length=64,
    layers=(LAYER,) * LAYERS,
    final_norm=NORM,
    tied_embeddings=True,
)


def filled(rank: int, world: int) -> KVCache:
    """A cache with the latent vectors of block 2, the same on every rank."""
    cache, draw = KVCache(CONFIG, PoolSizes(NUM_BLOCKS), rank, world), torch.Generator().manual_seed(1)
    slots = torch.arange(2 * BLOCK_SIZE, 3 * BLOCK_SIZE)
    for layer in cache.layers:
        rows = torch.randn(BLOCK_SIZE, 1, LATENT.rank + LATENT.rope_dim, generator=draw)
        layer.write(slots, rows, rows[..., : LATENT.rank])
    return cache


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_one_rank_stores_what_all_have(world: int) -> None:
    blocks = [PlainBlocks(filled(rank, world), CONFIG, rank, world) for rank in range(world)]
    assert [each.heads for each in blocks] == [range(1)] * world
    assert [len(each.writes) for each in blocks] == [1] + [0] * (world - 1)
    bytes_of_block = LAYERS * BLOCK_SIZE * (24 + 8) * 4
    assert {each.head_bytes for each in blocks} == {bytes_of_block}
    assert {block_bytes(CONFIG, rank, world) for rank in range(world)} == {bytes_of_block}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_the_bytes(world: int) -> None:
    source = filled(0, 2)
    stored = np.zeros((1, PlainBlocks(source, CONFIG, 0, 2).head_bytes), np.uint8)
    PlainBlocks(source, CONFIG, 0, 2).copy_out(2, stored)
    for rank in range(world):
        cache = KVCache(CONFIG, PoolSizes(NUM_BLOCKS), rank, world)
        PlainBlocks(cache, CONFIG, rank, world).copy_in(1, 0, stored[:1])
        for layer, wanted in zip(cache.layers, source.layers, strict=True):
            found, expected = layer.gather(torch.tensor([1]), 1), wanted.gather(torch.tensor([2]), 1)
            assert all(torch.equal(*sides) for sides in zip(found, expected, strict=True))
            assert not layer.gather(torch.tensor([2]), 1)[0].any()


def test_the_format_names_the_layout() -> None:
    assert kv_format(CONFIG) == "fp32+latent"
    assert CONFIG.held_kv_heads(4, 4) == 4
