"""Lets the system give memory to the blocks of a KV cache before they are used.

A page takes memory when it is first written, and meanwhile the writer waits: 0.1 to 6 ms for a huge page,
and a block has a page of its own in each layer. So a thread of low priority touches the pages of the blocks
that are likely to be used next; the rest of the cache stays without memory until it is needed.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

BYTES_AHEAD = 512 << 20  # prompts get all their blocks at once, long before they use them
_PIECE = 2 << 20  # bytes of a call: other threads that need pages wait for it at most
_NICE = 19  # ranks have 10 by default: a thread that computes has nine tenths of a core that both want
_REST = 4  # times as long as a piece took it waits before the next one, so that steps take equally long
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: as if each page was written, without a change


class PagesAhead:
    """Touches the pages of the blocks after the last one in use.

    Args:
        buffers: [blocks, ...] each, all with as many blocks.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = [one for one in buffers if one.numel()]
        self._blocks = len(self._buffers[0]) if self._buffers else 0
        of_block = sum(one[0].nbytes for one in self._buffers)
        self._ahead = max(1, BYTES_AHEAD // max(1, of_block))
        self._asked = 0
        self._last = -1
        self._thread: threading.Thread | None = None
        self.use(-1)

    def use(self, last: int) -> None:
        """Announces the highest block in use; returns at once."""
        self._last = max(self._last, last)
        if self._asked == self._blocks or last + self._ahead * 3 // 4 < self._asked:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        first, self._asked = self._asked, min(self._blocks, last + 1 + self._ahead)
        self._thread = threading.Thread(
            target=self._touch, args=(first, self._asked), name="pages-ahead", daemon=True
        )
        self._thread.start()

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
        count = max(1, _PIECE // max(one[0].nbytes for one in self._buffers))
        for block in range(first, end, count):  # what is used first comes first, of all layers
            for one in self._buffers:
                size = one[0].nbytes
                at = (one.data_ptr() + block * size) // mmap.PAGESIZE * mmap.PAGESIZE
                stop = one.data_ptr() + min(block + count, end) * size
                began = time.perf_counter()
                if madvise(at, stop - at, _POPULATE_WRITE):
                    return  # an older system, or no memory is left: pages come with their first use
                if first and block > self._last + self._ahead // 4:
                    time.sleep(_REST * (time.perf_counter() - began))
