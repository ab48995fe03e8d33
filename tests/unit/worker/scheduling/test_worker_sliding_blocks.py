"""Blocks of layers with a sliding window: who holds them, what stays findable, and how many there must be."""

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import fitting_blocks, least_blocks, sliding_blocks

NAMES = [bytes([number]) * 16 for number in range(64)]
WINDOW = 40  # a token sees its own block and up to three before it


def computed(blocks: BlockManager, seq_id: int, count: int) -> None:
    """Computes so many full blocks of a sequence, one after another."""
    assert blocks.sliding is not None
    for number in range(count):
        blocks.sliding.extend(seq_id, number, (number + 1) * BLOCK_SIZE)
        blocks.register(seq_id, number, NAMES[number : number + 1])
        blocks.sliding.slide(seq_id, (number + 1) * BLOCK_SIZE)


def test_a_long_sequence_holds_its_window_only() -> None:
    blocks = BlockManager(64, SlidingBlocks(12, WINDOW, chunk_blocks=2))
    assert blocks.allocate(1, 60 * BLOCK_SIZE) == 0
    computed(blocks, 1, 60)
    assert blocks.sliding is not None
    assert blocks.sliding.num_used == 3  # 39 positions behind the next one
    blocks.check_invariants()
    blocks.release(1)
    assert (blocks.num_used, blocks.sliding.num_used) == (0, 0)
    blocks.check_invariants()


def test_a_sequence_begins_only_where_the_window_is_still_there() -> None:
    blocks = BlockManager(64, SlidingBlocks(8, WINDOW, chunk_blocks=1))
    blocks.allocate(1, 20 * BLOCK_SIZE)
    computed(blocks, 1, 20)
    blocks.release(1)
    # all 20 are cached in the layers without a window; of the others the last 8
    assert blocks.num_found(NAMES[:20]) == 20
    assert [blocks.num_found(NAMES[:count]) for count in (15, 14, 12, 4)] == [15, 0, 0, 0]
    assert blocks.find(NAMES[2]) is None  # half of it is gone
    assert blocks.allocate(2, 20 * BLOCK_SIZE + 1, NAMES[:20]) == 20 * BLOCK_SIZE
    assert blocks.sliding is not None
    assert blocks.sliding.extend(2, 0, 20 * BLOCK_SIZE + 1)[0] == 17
    blocks.check_invariants()


def test_a_fetch_brings_the_window_only() -> None:
    blocks = BlockManager(64, SlidingBlocks(12, WINDOW, chunk_blocks=2))
    blocks.allocate(1, 10 * BLOCK_SIZE)
    assert blocks.sliding is not None
    assert len(blocks.sliding.skip_to(1, 9)) == 3
    first, extended = blocks.sliding.extend(1, 0, 10 * BLOCK_SIZE)
    assert (first, len(extended)) == (6, 4)
    blocks.check_invariants()


def test_each_sequence_reserves_its_share() -> None:
    blocks = BlockManager(64, SlidingBlocks(12, WINDOW, chunk_blocks=2))
    assert blocks.allocate(1, 1) == blocks.allocate(2, 1) == 0
    assert blocks.allocate(3, 1) is None  # five blocks each, and two for chunks
    blocks.release(1)
    assert blocks.allocate(3, 1) == 0
    with pytest.raises(ValueError, match="too few for a window of 40 tokens"):
        SlidingBlocks(6, WINDOW, chunk_blocks=2)


@pytest.mark.parametrize("num_blocks", [1, 100, 1000, 100_000])
def test_the_pool_saves_memory_or_is_not_there(num_blocks: int) -> None:
    least = least_blocks(512, token_budget=512, max_running=8)
    count = sliding_blocks(num_blocks, least)
    assert count == 0 or least <= count < num_blocks
    memory = num_blocks * 100 + (count or num_blocks) * 500
    assert fitting_blocks(memory, 100, 500, least) >= num_blocks
    fitting = fitting_blocks(memory, 100, 500, least)
    assert fitting * 100 + (sliding_blocks(fitting, least) or fitting) * 500 <= memory
