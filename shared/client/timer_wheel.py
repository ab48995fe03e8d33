"""One timer for all requests of a client.

Each entry stands in the bucket of the tick in which it is due, and is asked for its next due time when its
bucket comes up. An entry that was replaced, or whose request has ended, costs nothing until then.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """An entry of a wheel."""

    timer_due: float
    """When its bucket comes up, on the loop's clock; infinity: it stands in none. The wheel sets it."""


T = TypeVar("T", bound=Timed)


class TimerWheel(Generic[T]):
    """Calls `fire(entry, now)` when an entry is due, `tick_s` late at most."""

    def __init__(self, tick_s: float, fire: Callable[[T, float], None]) -> None:
        self._tick_s = tick_s
        self._fire = fire
        self._buckets: dict[int, list[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._loop = asyncio.get_running_loop()

    def schedule(self, entry: T, due: float) -> None:
        """Have the entry fire at `due`, a time of the running loop's clock, unless it fires before."""
        if due >= entry.timer_due:
            return
        entry.timer_due = due
        number = int(due / self._tick_s) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = [entry]
        else:
            bucket.append(entry)
        if self._timer is None or number < self._next:
            self._arm(number)

    def stop(self) -> None:
        """Forget all entries."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = number
        self._timer = self._loop.call_at(number * self._tick_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        last = int(now / self._tick_s + 1e-6)
        for number in sorted(number for number in self._buckets if number <= last):
            for entry in self._buckets.pop(number):
                if entry.timer_due / self._tick_s >= number:
                    continue  # it has fired, and may fire again later
                entry.timer_due = math.inf
                self._fire(entry, now)
        self._arm_next()

    def _arm_next(self) -> None:
        # not in `_tick`, where mypy takes the timer for None to the end, and compiled code insists on it
        if self._buckets and self._timer is None:
            self._arm(min(self._buckets))
