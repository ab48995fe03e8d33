"""One timer for all requests of a client: who is due in which tick.

Each entry stands in one bucket, and is asked for its next due time when its bucket comes up; that a request
ended long before costs nothing until then.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Wheel(Generic[T]):
    """Calls `fire(entry, now)` some time in the tick of its due time, `tick_s` late at most."""

    def __init__(self, tick_s: float, fire: Callable[[T, float], None]) -> None:
        self._tick_s = tick_s
        self._fire = fire
        self._buckets: dict[int, list[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._loop = asyncio.get_running_loop()

    def add(self, entry: T, due: float) -> None:
        """`due` is a time of the running loop's clock."""
        number = int(due / self._tick_s) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = [entry]
        else:
            bucket.append(entry)
        if self._timer is None or number < self._next:
            self._arm(number)

    def stop(self) -> None:
        """Forgets everything."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = number
        self._timer = self._loop.call_at(number * self._tick_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        last = int(now / self._tick_s + 1e-6)
        for number in sorted(number for number in self._buckets if number <= last):
            for entry in self._buckets.pop(number):
                self._fire(entry, now)
        if self._buckets and self._timer is None:
            self._arm(min(self._buckets))
