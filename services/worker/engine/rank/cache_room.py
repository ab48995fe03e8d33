"""Decides how many blocks the KV cache of every rank has: as many as were asked for, or as many as fit."""

import torch

from services.worker.engine.checkpoint.memory_check import MemoryShort, least_tokens
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.device import gpu_memory
from services.worker.engine.rank.backend import ComputeBackend
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.rank_messages import RankConfig
from services.worker.rank_protocol.sliding_pool import PoolSizes, fitting_blocks, least_blocks, sliding_blocks
from shared.host.cores_and_memory import available_bytes

MOST_BLOCKS = 2**24  # exact in fp32, in which ranks compare their numbers


def agreed_sizes(
    config: RankConfig, shape: ModelConfig, backend: ComputeBackend, collectives: Collectives
) -> PoolSizes:
    """Sizes of every rank's KV cache.

    Rank 0 decides for memory that ranks share; among GPUs the one with the least room for blocks decides.

    Raises:
        MemoryShort: The number that was asked for does not fit.
    """
    own = _sizes(config, shape, backend) if config.rank == 0 or backend.placement.on_gpu else PoolSizes(0)
    if backend.placement.on_gpu:
        counts = collectives.all_gather(torch.tensor([float(own.num_blocks)]))
        count = int(counts.min())
        own = PoolSizes(count, _sliding(config, shape, count) if backend.sliding_bytes else 0)
    agreed = collectives.broadcast(b"%d %d" % own)
    return PoolSizes(*(int(number) for number in agreed.split()))


def _sizes(config: RankConfig, shape: ModelConfig, backend: ComputeBackend) -> PoolSizes:
    """The KV cache that fits into this machine or GPU.

    Checked again after loading, since other processes may have taken memory meanwhile.

    Raises:
        MemoryShort: The number that was asked for does not fit.
    """
    run = config.run
    # a rank's bytes are proportional to its KV heads, whose number may differ between ranks
    own = here = 1
    if backend.placement.on_gpu:
        free = gpu_memory(backend.placement)[0]
    else:
        own = len(shape.cached_heads_of(config.rank, run.tensor_parallel))
        here = shape.held_kv_heads(run.local_ranks, run.tensor_parallel)
        free = available_bytes() - backend.hot_bytes * here // own
    each, sliding = (size * here // own for size in (backend.block_bytes, backend.sliding_bytes))
    least = least_blocks(max(shape.windows), run.token_budget, run.max_running)
    if run.kv_cache_tokens == 0:
        count = max(1, min(MOST_BLOCKS, _fitting(int(free * run.kv_memory_share), each, sliding, least)))
    else:
        count = -(-run.kv_cache_tokens // BLOCK_SIZE)
    sizes = PoolSizes(count, _sliding(config, shape, count) if sliding else 0)
    needed = (backend.cache_bytes(sizes) - backend.hot_bytes) * here // own
    if config.restarted and not backend.why_plain and not backend.placement.on_gpu:
        count = -(-least_tokens(run, shape) // BLOCK_SIZE)
        fewest = PoolSizes(count, _sliding(config, shape, count) if sliding else 0)
        needed = min(needed, (backend.cache_bytes(fewest) - backend.hot_bytes) * here // own)
    if run.kv_cache_tokens and needed > free:
        raise MemoryShort(
            f"kv_cache_tokens={run.kv_cache_tokens} needs {needed / 2**30:.1f} GiB, but after "
            f"loading {free / 2**30:.1f} GiB of memory are free; set a smaller one"
        )
    return sizes


def _sliding(config: RankConfig, shape: ModelConfig, num_blocks: int) -> int:
    run = config.run
    return sliding_blocks(num_blocks, least_blocks(max(shape.windows), run.token_budget, run.max_running))


def _fitting(memory: int, each: int, sliding: int, least: int) -> int:
    return fitting_blocks(memory, each - sliding, sliding, least) if sliding else memory // each
