"""Work in a thread with a limit of CPU time.

A busy machine, or a leader that stood still, ends no work that way.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from services.worker.rank_protocol.run_config import STRETCH

T = TypeVar("T")
_LEAST_WAIT_S = 0.005


class ThreadWork(Generic[T]):
    """Work that is called in a thread; its CPU time can be read meanwhile.

    Args:
        work: Called once.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._clock: int = time.CLOCK_MONOTONIC
        self._began_s = 0.0
        self._runs = False

    def __call__(self) -> T:
        """Do the work."""
        if sys.platform == "linux":  # elsewhere all time counts
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._began_s = time.clock_gettime(self._clock)
        self._runs = True
        try:
            return self._work()
        finally:
            self._runs = False

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used; 0 before it began and after it ended."""
        try:
            return time.clock_gettime(self._clock) - self._began_s if self._runs else 0.0
        except OSError:  # the thread has ended
            return 0.0

    async def await_end(self, running: asyncio.Future[T], limit_s: float) -> T:
        """Return the result; the work goes on if this is cancelled.

        Args:
            running: The work in an executor.
            limit_s: CPU time that it may use; in all, at most `STRETCH` times as much passes.

        Raises:
            TimeoutError: It has used more.
        """
        loop, waited_s = asyncio.get_running_loop(), 0.0
        running.add_done_callback(_retrieve_error)
        while not running.done():
            left_s = max(limit_s - self.cpu_s(), 0.0)
            if not left_s or waited_s >= STRETCH * limit_s:
                raise TimeoutError
            pause_s, began = max(left_s, _LEAST_WAIT_S), loop.time()
            await asyncio.wait({running}, timeout=pause_s)
            waited_s += min(loop.time() - began, pause_s)  # this loop may have stood still
        return running.result()


def _retrieve_error(running: "asyncio.Future[T]") -> None:
    """Mark the error of work that nothing waits for any more as retrieved, so that asyncio does not warn."""
    if not running.cancelled():
        running.exception()
