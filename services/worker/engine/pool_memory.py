"""The memory of a pool of KV blocks, from which the system gets back the pages of blocks without content.

A block's bytes of all layers lie together, so a pool that is little used takes few pages, huge ones too, and
neighbouring blocks without content give whole pages back.
"""

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.pages_ahead import PagesAhead

HUGE_PAGE = 2 << 20
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class PoolMemory:
    """Zeros for `num_blocks` blocks; a page takes memory when it is first written.

    Attributes:
        bytes: uint8, [blocks, bytes of a block].
        block_bytes: As given.
        ahead: Touches pages before they are used.
    """

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        size = num_blocks * block_bytes
        self._unit = HUGE_PAGE if _has_huge_pages() else mmap.PAGESIZE
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self._unit == HUGE_PAGE:
            with suppress(OSError):  # small pages serve as well, only slower
                memory.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(memory, np.uint8)
        skip = -raw.ctypes.data % HUGE_PAGE
        self.bytes: Tensor = torch.from_numpy(raw[skip : skip + size]).view(num_blocks, block_bytes)
        self.block_bytes = block_bytes
        self.ahead = PagesAhead(self.bytes)

    def use(self, last: int) -> None:
        """Announces the highest block in use, so that the next ones have memory in time; -1: none."""
        self.ahead.use(last)

    def give_back(self, first: int, end: int) -> None:
        """Gives the pages back that lie wholly in blocks `first` to `end`, which are zeros then.

        A part of a huge page would stay in memory until the system needs it, so only whole ones are.
        """
        self.ahead.stop_at(first)
        start, size = self.bytes.data_ptr(), self.bytes.shape[1]
        whole = -(-(first * size) // self._unit) * self._unit
        length = end * size // self._unit * self._unit - whole
        if length <= 0:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if libc.madvise(start + whole, length, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "the system took no pages of the KV cache back")


def _has_huge_pages() -> bool:
    try:
        return "[never]" not in HUGE_PAGES_FILE.read_text(encoding="ascii")
    except OSError:
        return False
