"""A limit on KV blocks that hold content: what goes, what stays, and what comes back."""

import random

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.pool import BlockPool, blocks_for
from services.worker.rank_protocol.plan import BLOCK_SIZE


def _fill(blocks: BlockManager, number: int, count: int) -> list[bytes]:
    """Caches `count` blocks of a sequence; returns their names."""
    names = [b"%d.%d" % (number, index) for index in range(count)]
    assert blocks.allocate(number, count * BLOCK_SIZE) == 0
    blocks.register(number, 0, names)
    blocks.release(number)
    return names


def _cached(blocks: BlockManager, names: list[bytes]) -> int:
    return sum(map(blocks.is_cached, names))


def test_the_content_that_was_unused_for_longest_goes_first_and_empty_blocks_before_it() -> None:
    blocks = BlockManager(16, region=2)
    old, young = _fill(blocks, 1, 6), _fill(blocks, 2, 6)
    blocks.set_limit(12)
    assert (_cached(blocks, old), _cached(blocks, young)) == (6, 6)
    assert blocks.take_vacated() == ([(12, 16)], [])
    blocks.set_limit(8)
    assert (_cached(blocks, old), _cached(blocks, young)) == (2, 6)
    blocks.set_limit(3)  # by whole regions
    assert (_cached(blocks, old), _cached(blocks, young)) == (0, 4)
    blocks.check_invariants()


def test_blocks_in_use_stay_and_leave_when_their_sequence_ends() -> None:
    blocks = BlockManager(8)
    names = _fill(blocks, 1, 3)
    assert blocks.allocate(2, 5 * BLOCK_SIZE, names) == 3 * BLOCK_SIZE
    table = blocks.table(2)
    blocks.set_limit(2)
    assert blocks.table(2) == table
    assert (blocks.num_used, blocks.num_free, _cached(blocks, names)) == (5, 0, 3)
    assert blocks.allocate(3, 1) is None
    assert len(blocks.append(2, 7 * BLOCK_SIZE) or ()) == 2  # it may grow into withheld blocks
    assert blocks.append(2, 9 * BLOCK_SIZE) is None
    blocks.release(2)
    blocks.set_limit(2)
    assert (blocks.num_free, blocks.num_held) == (2, 2)
    assert blocks.allocate(3, 2 * BLOCK_SIZE) == 0
    blocks.check_invariants()


def test_running_sequences_do_not_grow_beyond_a_bound() -> None:
    blocks = BlockManager(8)
    assert blocks.allocate(1, 3 * BLOCK_SIZE) == 0
    assert blocks.allocate(2, 1 * BLOCK_SIZE) == 0
    blocks.set_limit(4, 5)
    assert blocks.append(1, 5 * BLOCK_SIZE) is None
    assert len(blocks.append(1, 4 * BLOCK_SIZE) or ()) == 1
    assert blocks.append(2, 2 * BLOCK_SIZE) is None
    blocks.release(1)
    assert len(blocks.append(2, 5 * BLOCK_SIZE) or ()) == 4
    blocks.set_limit(4)
    assert len(blocks.append(2, 8 * BLOCK_SIZE) or ()) == 3
    blocks.check_invariants()


def test_a_higher_limit_gives_blocks_back_for_use() -> None:
    blocks = BlockManager(12, region=4)
    blocks.set_limit(4)
    assert blocks.allocate(1, 5 * BLOCK_SIZE) is None
    blocks.set_limit(12)
    assert blocks.allocate(1, 12 * BLOCK_SIZE) == 0
    assert sorted(blocks.table(1)) == list(range(12))
    assert not blocks.has_vacated  # what came back was not given away after all


def test_what_is_vacated_comes_with_its_neighbours_since_they_share_pages() -> None:
    pool = BlockPool(10, region=2)
    pool.withhold(2)
    assert pool.take_vacated() == [(8, 10)]
    assert pool.take_vacated() == []
    taken = pool.take(3)
    pool.withhold(6)
    assert pool.take_vacated() == [(4, 10)]
    pool.give_back(taken)
    pool.withhold(10)
    assert pool.take_vacated() == [(0, 10)]


@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(1, 40),
    region=st.integers(1, 7),
    calls=st.integers(1, 80),
)
def test_random_limits_take_nothing_from_sequences(
    seed: int, num_blocks: int, region: int, calls: int
) -> None:
    chance = random.Random(seed)
    blocks = BlockManager(num_blocks, region=region)
    content = dict[int, bytes]()  # of each named block, the oracle's
    tables = dict[int, list[int]]()
    for number in range(calls):
        action = chance.random()
        if action < 0.35:
            word = "".join(chance.choices("ab", k=chance.randint(1, 6)))
            names = [word[:end].encode() for end in range(1, len(word) + 1)]
            free, cost = blocks.num_free, blocks.cost(len(word) * BLOCK_SIZE, names)
            found = blocks.allocate(number, len(word) * BLOCK_SIZE, names)
            assert (found is None) == (cost > free)
            if found is not None:
                tables[number] = list(blocks.table(number))
                shared = found // BLOCK_SIZE
                assert [content[block] for block in tables[number][:shared]] == names[:shared]
                for block in tables[number][shared:]:
                    content.pop(block, None)
                before = {name for name in names if blocks.is_cached(name)}
                blocks.register(number, shared, names[shared:])
                fresh = zip(tables[number][shared:], names[shared:], strict=True)
                content.update((block, name) for block, name in fresh if name not in before)
        elif action < 0.5 and tables:
            seq_id = chance.choice(list(tables))
            added = blocks.append(seq_id, (len(tables[seq_id]) + chance.randint(0, 3)) * BLOCK_SIZE)
            for block in added or ():
                content.pop(block, None)
            tables[seq_id] += added or []
        elif action < 0.7 and tables:
            seq_id = chance.choice(list(tables))
            del tables[seq_id]
            blocks.release(seq_id)
        else:
            blocks.set_limit(chance.randint(1, num_blocks))
            used = {block for table in tables.values() for block in table}
            for first, end in blocks.take_vacated().blocks:
                assert used.isdisjoint(range(first, end))
                for block in range(first, end):
                    content.pop(block, None)
        assert {seq_id: list(blocks.table(seq_id)) for seq_id in tables} == tables
        assert blocks.num_used == len({block for table in tables.values() for block in table})
        blocks.check_invariants()
    for seq_id in tables:
        blocks.release(seq_id)
    limit = blocks_for(num_blocks * BLOCK_SIZE // 2) or 1
    blocks.set_limit(limit)
    assert limit <= blocks.num_blocks - sum(end - first for first, end in _withheld(blocks)) < limit + region
    assert blocks.num_held <= limit + region
    blocks.check_invariants()


def _withheld(blocks: BlockManager) -> list[tuple[int, int]]:
    """What is withheld: all of it is vacated once more when the limit falls again."""
    limit = blocks.limit
    blocks.set_limit(blocks.num_blocks)
    blocks.set_limit(limit)
    return blocks.take_vacated().blocks
