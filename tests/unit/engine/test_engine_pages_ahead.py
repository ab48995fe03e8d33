"""Pages of a KV cache get memory before they are used, and only those of the blocks ahead."""

import ctypes
import mmap

import pytest
import torch

from services.worker.engine.pages_ahead import PagesAhead

_BLOCK = 64 << 10  # bytes
_AHEAD = 256
_COUNT = 4 * _AHEAD


def _pages(tensor: torch.Tensor) -> list[bool]:
    """Whether each page that begins in the tensor has memory."""
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - begin
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), found) == 0
    return [bool(one & 1) for one in found]


def _blocks_of(memory: mmap.mmap) -> torch.Tensor:
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(_COUNT, _BLOCK)


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    monkeypatch.setattr("services.worker.engine.pages_ahead.BYTES_AHEAD", 2 * _AHEAD * _BLOCK)
    return [_blocks_of(mmap.mmap(-1, _COUNT * _BLOCK)) for _ in range(2)]


def _share(tensor: torch.Tensor, first: int, end: int) -> float:
    found = _pages(tensor[first:end])
    return sum(found) / len(found)


def test_the_blocks_ahead_have_memory_and_later_ones_none(buffers: list[torch.Tensor]) -> None:
    pages = PagesAhead(buffers)
    pages.wait()
    for one in buffers:
        assert _share(one, 0, _AHEAD) == 1.0
        assert _share(one, _AHEAD + 1, _COUNT) == 0.0


def test_blocks_in_use_move_it_on_without_a_change_of_what_they_hold(buffers: list[torch.Tensor]) -> None:
    pages = PagesAhead(buffers)
    pages.wait()
    buffers[0][:_AHEAD] = 7
    pages.use(_AHEAD - 1)
    pages.wait()
    assert _share(buffers[1], 0, 2 * _AHEAD) == 1.0
    assert _share(buffers[1], 2 * _AHEAD + 1, _COUNT) == 0.0
    assert bool((buffers[0][:_AHEAD] == 7).all())
    assert not bool(buffers[0][_AHEAD : 2 * _AHEAD].any())


def test_a_block_or_two_more_ask_for_nothing(buffers: list[torch.Tensor]) -> None:
    pages = PagesAhead(buffers)
    pages.wait()
    pages.use(_AHEAD // 8)
    pages.wait()
    assert _share(buffers[0], _AHEAD + 1, _COUNT) == 0.0


def test_the_last_blocks_end_it(buffers: list[torch.Tensor]) -> None:
    pages = PagesAhead(buffers)
    for last in (_AHEAD, _COUNT - 1, _COUNT - 1):
        pages.wait()
        pages.use(last)
    pages.wait()
    assert _share(buffers[1], 0, _COUNT) == 1.0


def test_a_cache_without_such_layers_has_nothing_to_touch() -> None:
    pages = PagesAhead([])
    pages.use(5)
    pages.wait()
