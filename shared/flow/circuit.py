"""A circuit breaker: what fails gets no requests for a while, then single ones as trials. Pure.

Routers have one for each group, clients of a store one for each store.

- Closed: all requests pass. The circuit opens when as many failures as its limit come within the window with
  no success in between, or at one failure that leaves no doubt; also when that many generations broke and
  they were more than half of all that ended.
- Open: none pass until `open_s` is over. The time doubles, up to `max_open_s`, each time it opens again
  without having closed in between.
- Half-open: one request passes, and its outcome decides. A success closes the circuit at any time, but after
  broken generations only one that ends well does.

`now` is in monotonic seconds everywhere.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

CircuitState = Literal["closed", "open", "half_open"]
_PARTS = 16  # of the window, by which ends are counted


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """When a circuit opens, and for how long.

    Attributes:
        failures: So many within the window open it.
        window_s: Length of the window.
        open_s: It stays open so long at first.
        max_open_s: And so long at most.
    """

    failures: int = 3
    window_s: float = 10.0
    open_s: float = 0.5
    max_open_s: float = 10.0


def store_limits(failures: int = 3, probe_s: float = 0.25) -> CircuitLimits:
    """The limits for a store: failures in a row count however far apart, and probes come every `probe_s`."""
    return CircuitLimits(failures, math.inf, probe_s, probe_s)


class Circuit:
    """One circuit, closed at first; see the module's text.

    Attributes:
        opened_total: How often it opened after having been closed.
    """

    def __init__(self, limits: CircuitLimits) -> None:
        self.opened_total = 0
        self._limits = limits
        self._failed_at: deque[float] = deque(maxlen=limits.failures)
        self._ends: deque[tuple[float, int, int]] = deque()  # begin of a part, good ends, broken ones
        self._opened_at: float | None = None
        self._open_s = limits.open_s
        self._trial_at: float | None = None
        self._broken = False

    @property
    def is_closed(self) -> bool:
        """True if all requests pass."""
        return self._opened_at is None

    @property
    def opened_by_ends(self) -> bool:
        """True if broken generations opened it, not failures."""
        return self._opened_at is not None and self._broken

    def state(self, now: float) -> CircuitState:
        """Returns the state at this moment."""
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + self._open_s else "half_open"

    def allows(self, now: float) -> bool:
        """Returns whether a request may be sent; while half-open, only until one was sent.

        A trial without an outcome within the open time does not prevent the next one.
        """
        if self._opened_at is None:
            return True
        if self.state(now) == "open":
            return False
        return self._trial_at is None or now >= self._trial_at + self._open_s

    def retry_after_s(self, now: float) -> float:
        """Returns the seconds until a request may be sent as a trial; 0 if one may now."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._open_s - now)

    def count_sent(self, now: float) -> None:
        """Counts a request that was sent."""
        if self._opened_at is not None and self.state(now) == "half_open":
            self._trial_at = now

    def count_success(self) -> bool:
        """Counts an answer; returns whether this closed the circuit."""
        self._failed_at.clear()
        if self._opened_at is None or self._broken:
            return False
        self._close()
        return True

    def count_failure(self, now: float, *, certain: bool = False) -> bool:
        """Counts a failure.

        Args:
            certain: What failed is certainly away, which a time-out alone does not show.

        Returns:
            Whether this opened the circuit, also if it was half-open.
        """
        if self._opened_at is not None:
            if self.state(now) == "open":
                return False  # a late failure of a request sent before it opened
            self._open(now, self._broken)
            return True
        self._failed_at.append(now)
        enough = len(self._failed_at) >= self._limits.failures
        if not certain and (not enough or now - self._failed_at[0] > self._limits.window_s):
            return False
        self._open(now, broken=False)
        return True

    def count_ends(self, good: int, broken: int, now: float) -> bool:
        """Counts generations that ended; returns whether this opened the circuit."""
        if not good and not broken:
            return False
        if self._opened_at is not None:
            return self._count_ends_of_trial(good, broken, now)
        self._add_ends(good, broken, now)
        if not broken:
            return False
        all_good, all_broken = sum(part[1] for part in self._ends), sum(part[2] for part in self._ends)
        if all_broken < self._limits.failures or all_broken <= all_good:
            return False
        self._open(now, broken=True)
        return True

    def _count_ends_of_trial(self, good: int, broken: int, now: float) -> bool:
        """Generations ended while it is not closed; those that ended before a trial was sent do not count."""
        if self.state(now) == "open" or self._trial_at is None:
            return False
        if broken > good:
            self._open(now, broken=True)
            return True
        self._close()
        return False

    def _add_ends(self, good: int, broken: int, now: float) -> None:
        window_s = self._limits.window_s
        while self._ends and now - self._ends[0][0] > window_s:
            self._ends.popleft()
        if self._ends and now - self._ends[-1][0] < window_s / _PARTS:
            began, good_before, broken_before = self._ends.pop()
            self._ends.append((began, good_before + good, broken_before + broken))
        else:
            self._ends.append((now, good, broken))

    def _open(self, now: float, broken: bool) -> None:
        if self._opened_at is None:
            self.opened_total += 1
        else:
            self._open_s = min(self._limits.max_open_s, self._open_s * 2)
        self._opened_at, self._trial_at, self._broken = now, None, broken
        self._failed_at.clear()
        self._ends.clear()

    def _close(self) -> None:
        self._opened_at = self._trial_at = None
        self._broken = False
        self._open_s = self._limits.open_s
