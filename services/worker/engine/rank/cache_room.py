"""Decides how many blocks the KV cache of every rank has: as many as were asked for, or as many as fit."""

import torch

from services.worker.engine.checkpoint.memory_check import MemoryShort
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.plain.device import gpu_memory
from services.worker.engine.rank.backend import ComputeBackend
from services.worker.host import available_bytes
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.rank_messages import RankConfig


def agreed_blocks(
    config: RankConfig, shape: ModelConfig, backend: ComputeBackend, collectives: Collectives
) -> int:
    """Blocks of every rank's KV cache.

    Rank 0 decides for memory that ranks share; among GPUs the one with the least room for blocks decides.

    Raises:
        MemoryShort: The number that was asked for does not fit.
    """
    own = _num_blocks(config, shape, backend) if config.rank == 0 or backend.placement.on_gpu else 0
    if backend.placement.on_gpu:
        counts = collectives.all_gather(torch.tensor([float(own)]))  # exact up to 2**24 blocks
        own = int(counts.min())
    return int(collectives.broadcast(b"%d" % own))


def _num_blocks(config: RankConfig, shape: ModelConfig, backend: ComputeBackend) -> int:
    """Blocks of the KV cache that fit into this machine or GPU.

    Checked again after loading, since other processes may have taken memory meanwhile.

    Raises:
        MemoryShort: The number that was asked for does not fit.
    """
    run = config.run
    if backend.placement.on_gpu:
        each, free = backend.block_bytes, gpu_memory(backend.placement)[0]
    else:
        # a rank's bytes are proportional to its KV heads, whose number may differ between ranks
        own = len(shape.kv_heads_of(config.rank, run.tensor_parallel))
        here = shape.held_kv_heads(run.local_ranks, run.tensor_parallel)
        each = backend.block_bytes * here // own
        free = available_bytes() - backend.hot_bytes * here // own
    if run.kv_cache_tokens == 0:
        return max(1, int(free * run.kv_memory_share) // each)
    count = -(-run.kv_cache_tokens // BLOCK_SIZE)
    if count * each > free:
        raise MemoryShort(
            f"kv_cache_tokens={run.kv_cache_tokens} needs {count * each / 2**30:.1f} GiB, but after "
            f"loading {free / 2**30:.1f} GiB of memory are free; set a smaller one"
        )
    return count
