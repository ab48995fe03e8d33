"""Pages of a KV cache get memory before they are used, and only those of the blocks ahead."""

import mmap

import pytest
import torch

from services.worker.engine.pool_memory import PagesAhead
from tests.kits.engine.resident_pages import resident_share

_BLOCK = 64 << 10  # bytes
_AHEAD = 256
_COUNT = 4 * _AHEAD


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setattr("services.worker.engine.pool_memory.BYTES_AHEAD", _AHEAD * _BLOCK)
    memory = mmap.mmap(-1, _COUNT * _BLOCK)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(_COUNT, _BLOCK)


def _use(pages: PagesAhead, last: int) -> None:
    pages.use(last)
    pages.wait()


def test_a_cache_that_is_not_used_takes_no_memory(blocks: torch.Tensor) -> None:
    _use(PagesAhead(blocks), -1)
    assert resident_share(blocks) == 0.0


def test_the_blocks_ahead_have_memory_and_later_ones_none(blocks: torch.Tensor) -> None:
    _use(PagesAhead(blocks), 3)
    assert resident_share(blocks[:4]) == 0.0  # the step that uses them brings it
    assert resident_share(blocks[4 : _AHEAD + 4]) == 1.0
    assert resident_share(blocks[_AHEAD + 5 :]) == 0.0


def test_blocks_in_use_move_it_on_without_a_change_of_what_they_hold(blocks: torch.Tensor) -> None:
    pages = PagesAhead(blocks)
    _use(pages, 0)
    blocks[:_AHEAD] = 7
    _use(pages, _AHEAD - 1)
    assert resident_share(blocks[: 2 * _AHEAD]) == 1.0
    assert resident_share(blocks[2 * _AHEAD + 1 :]) == 0.0
    assert bool((blocks[:_AHEAD] == 7).all())
    assert not bool(blocks[_AHEAD : 2 * _AHEAD].any())


def test_a_block_or_two_more_ask_for_nothing(blocks: torch.Tensor) -> None:
    pages = PagesAhead(blocks)
    _use(pages, 0)
    _use(pages, _AHEAD // 8)
    assert resident_share(blocks[_AHEAD + 2 :]) == 0.0


def test_the_last_blocks_end_it(blocks: torch.Tensor) -> None:
    pages = PagesAhead(blocks)
    blocks[:_AHEAD] = 1
    for last in (_AHEAD - 1, 2 * _AHEAD - 1, 3 * _AHEAD - 1, _COUNT - 1, _COUNT - 1):
        _use(pages, last)
    assert resident_share(blocks) == 1.0


def test_blocks_that_gave_their_memory_back_are_not_touched(blocks: torch.Tensor) -> None:
    pages = PagesAhead(blocks)
    pages.stop_at(_AHEAD // 2)
    _use(pages, 0)
    assert resident_share(blocks[1 : _AHEAD // 2]) == 1.0
    assert resident_share(blocks[_AHEAD // 2 + 1 :]) == 0.0


def test_a_cache_without_such_layers_has_nothing_to_touch() -> None:
    _use(PagesAhead(torch.empty(0, 0, dtype=torch.uint8)), 5)
