"""This rank's line of the progress page, which the leader reads; see `rank_protocol/progress_page.py`.

Only the computing thread writes here. Compiled code gets the address and counts beats itself.
"""

import ctypes
import mmap

from services.worker.rank_protocol.progress_page import BEATS, BEGUN, DONE, LINE_WORDS, page_bytes


class Progress:
    """Counts of beats, and of steps begun and done.

    Args:
        shared_fd: Of the page; -1 for memory of this process alone.

    Attributes:
        address: Of the count of beats, 8 bytes.
    """

    def __init__(self, shared_fd: int = -1, rank: int = 0) -> None:
        memory = mmap.mmap(shared_fd, page_bytes(rank + 1))
        self._words = memoryview(memory).cast("Q")
        self._line = rank * LINE_WORDS
        self.address = ctypes.addressof(ctypes.c_uint64.from_buffer(memory, 8 * (self._line + BEATS)))

    def beat(self) -> None:
        """Counts a part of a step."""
        self._words[self._line + BEATS] += 1

    def begin_step(self) -> None:
        """Counts a step that begins."""
        self._words[self._line + BEGUN] += 1
        self.beat()

    def finish_step(self) -> None:
        """Counts a step that is done."""
        self._words[self._line + DONE] += 1
        self.beat()
