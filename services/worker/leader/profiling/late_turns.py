"""Finds turns of the event loop that took long: a timer that is due each few milliseconds is late then."""

import asyncio
import time
from array import array

TICK_S = 0.002
LIMIT_NS = 2_000_000  # lateness that is recorded
MAX_TURNS = 5000


class LateTurns:
    """Records late turns while `watch` runs.

    Attributes:
        found: When the loop should have turned, and when it did, in nanoseconds of the monotonic clock, two
            numbers for each turn.
    """

    def __init__(self) -> None:
        self.found = array("q")

    async def watch(self) -> None:
        """Watches until it is cancelled."""
        while len(self.found) < 2 * MAX_TURNS:
            due_ns = time.monotonic_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            if now_ns - due_ns > LIMIT_NS:
                self.found.extend((due_ns, now_ns))
