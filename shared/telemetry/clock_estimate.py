"""By how much another clock is ahead of this one, with a bound of the error. Pure.

A ping was received after it was sent, and its answer was received after it was sent. So each round trip
gives an interval that holds the difference of the clocks. All of them hold it together: the shortest time out
and the shortest time back need not be of the same ping.
"""

from collections import deque
from typing import NamedTuple

DRIFT = 5e-4  # two clocks part by at most so much of the time that passes: NTP turns a clock no faster
_KEPT = 64


class RoundTrip(NamedTuple):
    """Times in nanoseconds: two of this clock, between them two of the other."""

    sent_ns: int
    received_ns: int
    answered_ns: int
    heard_ns: int


class ClockOffset(NamedTuple):
    """How far another clock is ahead, in nanoseconds, and by how much that may be wrong."""

    offset_ns: int
    error_ns: int


class ClockEstimate:
    """The difference of two clocks, from the newest round trips."""

    def __init__(self) -> None:
        self._trips: deque[RoundTrip] = deque(maxlen=_KEPT)

    def add(self, trip: RoundTrip) -> None:
        """Takes a round trip into account."""
        self._trips.append(trip)

    def offset(self, now_ns: int) -> ClockOffset | None:
        """Returns the offset at that time of this clock; None if no ping was answered."""
        found: tuple[int, int] | None = None
        for trip in reversed(self._trips):  # one that contradicts newer ones is out of date
            drift_ns = int(max(0, now_ns - trip.heard_ns) * DRIFT)
            low = trip.answered_ns - trip.heard_ns - drift_ns
            high = trip.received_ns - trip.sent_ns + drift_ns
            if found is not None:
                low, high = max(low, found[0]), min(high, found[1])
            if low > high:
                break
            found = low, high
        if found is None:
            return None
        low, high = found
        return ClockOffset((low + high) // 2, (high - low + 1) // 2)
