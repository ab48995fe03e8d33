"""Counts in shared memory by which ranks of one host wait for each other.

A rank increments its own count and waits for those of the others. On x86-64, stores become visible in program
order (TSO), so a rank that sees a count also sees everything written before it. This is the plain
implementation; `native/signals.py` uses the same memory and sleeps on a futex.
"""

import os
import time
from typing import Protocol

from services.worker.rank_protocol.rank_messages import CACHE_LINE

_SPINS = 2000  # polls of a count (about 60 ns each) before the core is offered to others
_YIELD_S = 0.0001  # time with sched_yield before sleeping
_SLEEP_S = 0.00002
_WORDS = CACHE_LINE // 4


class Signals(Protocol):
    """A count of operations for each rank."""

    @property
    def count(self) -> int:
        """Number of operations that this rank has published."""
        ...

    def publish(self) -> None:
        """Increments this rank's count."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Waits until all ranks have published as often as this one.

        Returns:
            None, or after the timeout the number of a late rank.
        """
        ...


class PythonSignals:
    """See `Signals`.

    Args:
        shared: A cache line for each rank, initially zero.
        world: Number of ranks.
        spin: Whether to busy-wait at first.
    """

    def __init__(self, shared: memoryview, rank: int, world: int, spin: bool) -> None:
        self.count = 0
        self._counts = shared[: CACHE_LINE * world].cast("I")
        self._mine = rank * _WORDS
        self._others = [other * _WORDS for other in range(world) if other != rank]
        self._spins = _SPINS if spin else 0

    def publish(self) -> None:
        """See `Signals`."""
        self.count += 1
        self._counts[self._mine] = self.count % 2**32

    def wait(self, timeout_s: float) -> int | None:
        """See `Signals`: spins, then yields, then sleeps."""
        for other in self._others:
            for _ in range(self._spins):
                if self._reached(other):
                    break
            else:
                if not self._wait_slowly(other, timeout_s):
                    return other // _WORDS
        return None

    def _reached(self, other: int) -> bool:
        # counts wrap around; ranks are never further apart than a few operations
        return (self._counts[other] - self.count) % 2**32 < 2**31

    def _wait_slowly(self, other: int, timeout_s: float) -> bool:
        began = time.monotonic()
        while not self._reached(other):
            waited = time.monotonic() - began
            if waited > timeout_s:
                return False
            if waited < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(_SLEEP_S)
        return True
