"""What a rank writes into shared memory for its leader: its progress, and the times of its steps.

The pages are described in `rank_protocol/progress_page.py` and `rank_protocol/step_times.py`. Only the
computing thread writes here. Compiled code gets the address of the count of beats and adds to it itself.
"""

import ctypes
import mmap
import os
import time
from array import array
from collections import deque

from services.worker.rank_protocol.plan import StepResult
from services.worker.rank_protocol.progress_page import BEATS, BEGUN, DONE, LINE_WORDS, page_bytes
from services.worker.rank_protocol.step_times import (
    NO_PARTS,
    SLOTS,
    PartsOfStep,
    StepTimes,
    StepTimesWriter,
    times_bytes,
)


class StepRecorder:
    """Call `begin_step`, `note_copies` if blocks were copied, `finish_step` and `count_step` for each step.

    Args:
        shared_fd: Of the page, which is closed; -1 for memory of this process alone, whose newest steps
            the leader asks for (`take_new`).

    Attributes:
        began_ns: When the last step began.
        copied_ns: When its KV blocks were copied.
    """

    def __init__(self, shared_fd: int = -1, rank: int = 0) -> None:
        page = memoryview(mmap.mmap(shared_fd, times_bytes(rank + 1)))
        if shared_fd >= 0:
            os.close(shared_fd)
        self._writer = StepTimesWriter(page, rank)
        self._times = StepTimes(page, rank + 1)
        self._rank = rank
        self._new: deque[tuple[int, ...]] | None = None if shared_fd >= 0 else deque(maxlen=SLOTS)
        self._parts, self._step_id = NO_PARTS, 0
        self.began_ns = self.copied_ns = self._ended_ns = time.monotonic_ns()
        self._idle_ns = 0

    def begin_step(self, step_id: int) -> float:
        """Notes the begin of a step; returns the seconds since the one before it."""
        self.began_ns = self.copied_ns = now_ns = time.monotonic_ns()
        self._idle_ns = now_ns - self._ended_ns
        self._writer.begin_step(step_id, now_ns)
        return self._idle_ns / 1e9

    def note_copies(self) -> None:
        """Notes that the KV blocks are copied that the plan names."""
        self.copied_ns = time.monotonic_ns()

    def finish_step(self, result: StepResult) -> None:
        """Records the step; call it before the leader hears of the result."""
        self._ended_ns = time.monotonic_ns()
        self._step_id = result.step_id
        self._parts = PartsOfStep(
            int(result.linears_s * 1e9),
            int(result.attention_s * 1e9),
            int(result.collectives_s * 1e9),
            int(result.sampling_s * 1e9),
            int(result.masks_s * 1e9),
            self.copied_ns - self.began_ns,
        )
        self._writer.write_step(result.step_id, self.began_ns, self._ended_ns, self._parts, self._idle_ns)

    def count_step(self) -> None:
        """Adds the step to the counters; the leader does not wait for it."""
        self._writer.count_step(self.began_ns, self._ended_ns, self._parts, self._idle_ns)
        if self._new is not None:
            self._new.append((self._step_id, self.began_ns, self._ended_ns, *self._parts, self._idle_ns))

    def take_new(self) -> tuple[bytes, list[int]]:
        """Returns the steps since the last call and the counters, as `Pong` has them."""
        if self._new is None:
            return b"", []
        rows = array("q")
        while self._new:
            rows.extend(self._new.popleft())
        return rows.tobytes(), self._times.read_totals(self._rank).flat()


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
