"""A rank's own line of the page that shows its leader how far it is; see `domain/progress.py`.

Only the thread that computes writes here. Compiled code gets the address and counts beats itself.
"""

import ctypes
import mmap

from services.worker.rank_protocol.progress_page import BEATS, BEGUN, DONE, LINE_WORDS, page_bytes


class Progress:
    """Nobody looks at it where there is no page (shared_fd -1); the calls are the same.

    address: of the count of beats, 8 bytes.
    """

    def __init__(self, shared_fd: int = -1, rank: int = 0) -> None:
        memory = mmap.mmap(shared_fd, page_bytes(rank + 1))  # -1: memory of this process alone
        self._words = memoryview(memory).cast("Q")
        self._line = rank * LINE_WORDS
        self.address = ctypes.addressof(ctypes.c_uint64.from_buffer(memory, 8 * (self._line + BEATS)))

    def beat(self) -> None:
        """Another part of a step is done."""
        self._words[self._line + BEATS] += 1

    def begin(self) -> None:
        """A step begins."""
        self._words[self._line + BEGUN] += 1
        self.beat()

    def done(self) -> None:
        """The step is done."""
        self._words[self._line + DONE] += 1
        self.beat()
