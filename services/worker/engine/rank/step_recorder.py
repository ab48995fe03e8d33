"""Records the steps of this rank on the step times page, which the leader reads.

The page is described in `rank_protocol/step_times.py`. Only the computing thread writes here.
"""

import mmap
import os
import time

from services.worker.rank_protocol.plan import StepResult
from services.worker.rank_protocol.step_times import NO_PARTS, PartsOfStep, StepTimesWriter, times_bytes


class StepRecorder:
    """Call `begin_step`, `note_copies` if blocks were copied, `finish_step` and `count_step` for each step.

    Args:
        shared_fd: Of the page, which is closed; -1 for memory of this process alone.
        rank: Whose region it is.
    """

    def __init__(self, shared_fd: int = -1, rank: int = 0) -> None:
        page = memoryview(mmap.mmap(shared_fd, times_bytes(rank + 1)))
        if shared_fd >= 0:
            os.close(shared_fd)
        self._writer = StepTimesWriter(page, rank)
        self._parts = NO_PARTS
        self._began_ns = self._copied_ns = self._ended_ns = time.monotonic_ns()
        self._idle_ns = 0

    def begin_step(self, step_id: int) -> float:
        """Notes the begin of a step; returns the seconds since the one before it."""
        self._began_ns = self._copied_ns = now_ns = time.monotonic_ns()
        self._idle_ns = now_ns - self._ended_ns
        self._writer.begin_step(step_id, now_ns)
        return self._idle_ns / 1e9

    def note_copies(self) -> None:
        """Notes that the KV blocks are copied that the plan names."""
        self._copied_ns = time.monotonic_ns()

    def finish_step(self, result: StepResult) -> None:
        """Records the step; call it before the leader hears of the result."""
        self._ended_ns = time.monotonic_ns()
        self._parts = PartsOfStep(
            int(result.linears_s * 1e9),
            int(result.attention_s * 1e9),
            int(result.collectives_s * 1e9),
            int(result.sampling_s * 1e9),
            int(result.masks_s * 1e9),
            self._copied_ns - self._began_ns,
        )
        self._writer.write_step(result.step_id, self._began_ns, self._ended_ns, self._parts, self._idle_ns)

    def count_step(self) -> None:
        """Adds the step to the counters; the leader does not wait for it."""
        self._writer.count_step(self._began_ns, self._ended_ns, self._parts, self._idle_ns)
