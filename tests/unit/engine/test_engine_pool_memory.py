"""Blocks without content give their memory back; all others keep what they hold."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.pool_memory import HUGE_PAGE, PoolMemory
from tests.kits.engine.resident_pages import resident_pages, resident_share

_RANGES = st.lists(st.tuples(st.integers(0, 63), st.integers(1, 32)), max_size=6)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.engine.pool_memory.HUGE_PAGES_FILE", Path("/none"))


@pytest.mark.usefixtures("small_pages")
@given(_RANGES, st.sampled_from([512, 4096, 6144, 10_240]))
def test_no_other_block_changes_and_whole_pages_go(given_back: list[tuple[int, int]], size: int) -> None:
    pool = PoolMemory(64, size)
    oracle = np.random.default_rng(size).integers(1, 255, (64, size), np.uint8)
    pool.bytes.copy_(torch.from_numpy(oracle))
    kept = np.ones(64, bool)
    for first, count in given_back:
        end = min(64, first + count)
        pool.give_back(first, end)
        kept[first:end] = False
        inside = resident_pages(pool.bytes[first:end])[
            : max(0, (end * size) // 4096 - -(-first * size // 4096))
        ]
        assert not any(inside)
        pool.bytes[first:end] = 0  # what a next use may find there
    assert np.array_equal(pool.bytes.numpy()[kept], oracle[kept])


def test_huge_pages_go_as_a_whole() -> None:
    size = HUGE_PAGE // 8 * 3
    pool = PoolMemory(32, size)
    pool.bytes[:] = 1
    pool.give_back(8, 24)  # bytes 3 to 9 huge pages
    pool.give_back(1, 2)  # less than a huge page
    assert resident_share(pool.bytes[8:24]) < 0.01
    assert bool((pool.bytes[:8] == 1).all())
    assert bool((pool.bytes[24:] == 1).all())
    assert not bool(pool.bytes[8:24].any())
    pool.bytes[8:24] = 2
    assert bool((pool.bytes[8:24] == 2).all())
