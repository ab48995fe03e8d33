"""Pools of sliding blocks that are just large enough."""

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.rank_protocol.sliding_pool import chunk_blocks, least_blocks
from tests.kits.engine.hash_engine import HashEngine


def with_window(
    num_blocks: int, limits: SchedulerLimits, window: int, region: int = 1
) -> tuple[BlockManager, HashEngine]:
    """Blocks and the engine that has them; without a window all layers share the blocks."""
    if not window:
        return BlockManager(num_blocks, region=region), HashEngine(num_blocks)
    count = least_blocks(window, limits.token_budget, limits.max_running)
    sliding = SlidingBlocks(count, window, chunk_blocks(limits.token_budget, limits.max_running), region)
    return BlockManager(num_blocks, sliding, region), HashEngine(num_blocks, count, window)
