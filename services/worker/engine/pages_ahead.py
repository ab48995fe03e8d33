"""Lets the system give memory to the blocks of a KV cache before they are used.

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

from torch import Tensor

BYTES_AHEAD = 32 << 20  # a step of 512 tokens uses some 12 MiB of a small model, and takes long enough for it
_PIECE = 2 << 20  # bytes of a call: other threads that need pages wait for it at most
_NICE = 19  # ranks have 10 by default: a thread that computes has nine tenths of a core that both want
_REST = 4  # times as long as a piece took it waits before the next one, so that steps take equally long
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: as if each page was written, without a change


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
