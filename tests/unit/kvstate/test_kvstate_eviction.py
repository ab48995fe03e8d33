"""Scores, water marks and quotas: which blocks are evicted first, how many, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstate.domain.block_eviction import (
    BlockLimits,
    WaterMarks,
    cut,
    fitting,
    limit_bytes,
    score,
)

# Uses of sequences that share a prefix: (time in ms, priority, branch, number of blocks).
USES = st.lists(
    st.tuples(st.integers(0, 10**7), st.integers(-10, 10), st.integers(0, 2), st.integers(1, 12)), max_size=30
)


@given(USES, st.integers(0, 6))
def test_a_block_never_outlives_the_one_before_it(uses: list[tuple[int, int, int, int]], shared: int) -> None:
    """Whatever the uses and their order, the lowest score is always at the end of a sequence."""
    scores: dict[tuple[int, int], float] = {}

    def position_of(branch: int, depth: int) -> tuple[int, int]:
        return (0 if depth < shared else branch, depth)

    for used_ms, priority, branch, length in uses:
        for depth in range(length):
            key = position_of(branch, depth)
            scores[key] = max(scores.get(key, float("-inf")), score(used_ms, priority, depth))
    for _, _, branch, length in uses:
        for depth in range(1, length):
            assert scores[position_of(branch, depth)] < scores[position_of(branch, depth - 1)]


def test_use_priority_and_depth_all_count() -> None:
    assert score(2000, 0, 0) > score(1000, 0, 0)
    assert score(1000, 1, 0) > score(500_000, 0, 0) > score(1000, 0, 0)
    assert score(1000, 0, 1) < score(1000, 0, 0)


@pytest.mark.parametrize(
    ("configured", "maxmemory", "machine", "expected"),
    [(7, 1000, 1000, 7), (0, 1000, 9000, 800), (0, 0, 1000, 250), (0, 0, 0, 0)],
)
def test_the_limit_is_the_setting_or_a_share(
    configured: int, maxmemory: int, machine: int, expected: int
) -> None:
    assert limit_bytes(configured, 0.8, maxmemory, machine) == expected


def test_marks_free_down_to_the_low_one() -> None:
    marks = WaterMarks(1000)
    assert [marks.excess(used) for used in (0, 950, 951, 2000)] == [0, 0, 101, 1150]
    assert WaterMarks(0).excess(10**12) == 0


@given(st.lists(st.integers(0, 100)), st.integers(1, 1000))
def test_as_many_leading_blocks_stay_as_fit(sizes: list[int], quota: int) -> None:
    count = fitting(sizes, quota)
    assert sum(sizes[:count]) <= quota
    assert count == len(sizes) or sum(sizes[: count + 1]) > quota
    assert fitting(sizes, BlockLimits().kv_session_bytes) == len(sizes)


def test_new_blocks_are_cut_from_the_tail_and_no_more_than_need_be() -> None:
    sizes, fresh = [10, 10, 10, 10], [False, True, False, True]
    assert cut(sizes, fresh, 0) == []
    assert cut(sizes, fresh, 1) == [3]
    assert cut(sizes, fresh, 11) == [3, 1]
    assert cut(sizes, fresh, 1000) == [3, 1]
