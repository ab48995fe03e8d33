"""The memory of a pool of KV blocks, from which the system gets back the pages of blocks without content.

A block's bytes of all layers lie together, so a pool that is little used takes few pages, huge ones too, and
neighbouring blocks without content give whole pages back.

`PagesAhead`: lets the system give memory to the blocks of a KV cache before they are used.

A page takes memory when it is first written, and meanwhile the writer waits: 0.1 to 6 ms for a huge page. So
from the first use on a thread of low priority touches the pages of the blocks that are likely to be used
next; the rest of the cache stays without memory until it is needed.
"""

import ctypes
import mmap
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BYTES_AHEAD = 32 << 20  # a step of 512 tokens uses some 12 MiB of a small model, and takes long enough for it
_PIECE = 2 << 20  # bytes of a call: other threads that need pages wait for it at most
_NICE = 19  # ranks have 10 by default: a thread that computes has nine tenths of a core that both want
_REST = 4  # times as long as a piece took it waits before the next one, so that steps take equally long
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: as if each page was written, without a change
HUGE_PAGE = 2 << 20
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class PagesAhead:
    """Touches the pages of the blocks after the last one in use.

    Args:
        memory: uint8, [blocks, bytes of a block].
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._end, self._size = memory.shape
        self._ahead = max(1, BYTES_AHEAD // max(1, self._size))
        self._asked = 0
        self._last = -1
        self._thread: threading.Thread | None = None

    def use(self, last: int) -> None:
        """Announces the highest block in use; returns at once."""
        self._last = max(self._last, last)
        if self._asked >= self._end or last < 0 or last + self._ahead * 3 // 4 < self._asked:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        first, self._asked = max(self._asked, last + 1), min(self._end, last + 1 + self._ahead)
        self._thread = threading.Thread(
            target=self._touch, args=(first, self._asked), name="pages-ahead", daemon=True
        )
        self._thread.start()

    def stop_at(self, block: int) -> None:
        """Touches nothing from that block on, any more: it gave its memory back, and may not be used soon."""
        self._end = min(self._end, block)

    def wait(self) -> None:
        """Waits until what was asked for is done."""
        if self._thread is not None:
            self._thread.join()

    def _touch(self, first: int, end: int) -> None:
        """Touches the pages of blocks `first` to `end`, as far as the system knows how to."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # on Linux of this thread alone
        madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's would hold the interpreter
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        address = self._memory.data_ptr()
        at = (address + first * self._size) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = address + end * self._size
        while at < stop and (at - address) // self._size < self._end:
            size = min(_PIECE - at % _PIECE, stop - at)
            began = time.perf_counter()
            if madvise(at, size, _POPULATE_WRITE):
                return  # an older system, or no memory is left: pages come with their first use
            at += size
            if (at - address) // self._size > self._last + self._ahead // 4:
                time.sleep(_REST * (time.perf_counter() - began))


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
