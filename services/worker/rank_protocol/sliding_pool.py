"""How many blocks the layers with a sliding window need, where they have a pool of their own."""

from typing import NamedTuple

from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING
from services.worker.rank_protocol.plan import BLOCK_SIZE

_CACHED_SHARE = 8  # one sliding block more for so many blocks, for windows that later turns begin behind


class PoolSizes(NamedTuple):
    """Sizes of a KV cache: `num_sliding` is 0 where all layers share the `num_blocks`."""

    num_blocks: int
    num_sliding: int = 0


def reserved_blocks(window: int) -> int:
    """Returns the blocks that a sequence holds at most, beside those that steps in flight fill.

    It frees blocks when one is full: so its window reaches back from any position in its newest block.
    """
    return window // BLOCK_SIZE + 3


def chunk_blocks(token_budget: int, max_running: int) -> int:
    """Returns the blocks that the chunks of all steps in flight fill at most."""
    return MAX_OUTSTANDING * (-(-token_budget // BLOCK_SIZE) + max_running)


def least_blocks(window: int, token_budget: int, max_running: int) -> int:
    """Returns the blocks with which no running sequence ever lacks one."""
    return max_running * reserved_blocks(window) + chunk_blocks(token_budget, max_running)


def sliding_blocks(num_blocks: int, least: int) -> int:
    """Returns the sliding blocks beside `num_blocks` others; 0 if a pool of their own would save nothing."""
    count = least + num_blocks // _CACHED_SHARE
    return count if count < num_blocks else 0


def fitting_blocks(memory: int, block_bytes: int, sliding_bytes: int, least: int) -> int:
    """Returns the largest number of blocks that fit with their sliding blocks.

    Args:
        memory: In bytes.
        block_bytes: Of a block in the layers without a window.
        sliding_bytes: Of a block in the layers with one.
        least: As `least_blocks` gives them.
    """
    together = memory // (block_bytes + sliding_bytes)
    rest = memory - least * sliding_bytes
    apart = _CACHED_SHARE * rest // (_CACHED_SHARE * block_bytes + sliding_bytes) if rest > 0 else 0
    return max(together, apart)
