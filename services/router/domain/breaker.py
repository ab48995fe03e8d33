"""A circuit breaker for one group. Pure.

- Closed: all requests pass. The breaker trips when the group is lost `failures` times within the window with
  no request accepted in between, or when that many of its generations broke and they were more than half of
  all that ended.
- Open: none pass until `open_s` is over. The time doubles, up to `max_open_s`, each time it trips again
  without a recovery in between.
- Half-open: one request passes, and its outcome decides. After losses the breaker closes when a request is
  accepted; after broken generations, when one ends well.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]
_PARTS = 16  # of the window, by which ends are counted


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """`failures` within `window_s` seconds trip the breaker."""

    failures: int = 3
    window_s: float = 10.0
    open_s: float = 0.5
    max_open_s: float = 10.0


class Breaker:
    """The breaker of one group; see the module's text. `now` is monotonic seconds everywhere."""

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._lost_at: deque[float] = deque(maxlen=limits.failures)
        self._ends: deque[tuple[float, int, int]] = deque()  # begin of a part, good ends, broken ones
        self._opened_at: float | None = None
        self._open_s = limits.open_s
        self._probe_at: float | None = None
        self._breaks = False  # tripped by ends, not by losses

    def state(self, now: float) -> BreakerState:
        """The state at this moment."""
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + self._open_s else "half_open"

    def allows(self, now: float) -> bool:
        """Whether a request may go to the group; while half-open, only until one was sent.

        A probe without an outcome within `open_s` does not block the next one.
        """
        if self._opened_at is None:
            return True
        match self.state(now):
            case "closed":
                return True
            case "open":
                return False
            case "half_open":
                return self._probe_at is None or now >= self._probe_at + self._open_s

    @property
    def breaks(self) -> bool:
        """Whether broken generations tripped it, not losses."""
        return self._opened_at is not None and self._breaks

    def count_sent(self, now: float) -> None:
        """A request went to the group."""
        if self._opened_at is not None and self.state(now) == "half_open":
            self._probe_at = now

    def count_accepted(self) -> None:
        """The group took a request, so it can be reached."""
        self._lost_at.clear()
        if self._opened_at is not None and not self._breaks:
            self._close()

    def count_lost(self, now: float) -> bool:
        """The group was given up; returns whether this tripped the breaker."""
        if self._opened_at is not None:
            if self.state(now) == "open":
                return False  # a late failure of a request sent before it tripped
            self._trip(now, self._breaks)
            return True
        self._lost_at.append(now)
        if len(self._lost_at) < self._limits.failures or now - self._lost_at[0] > self._limits.window_s:
            return False
        self._trip(now, breaks=False)
        return True

    def count_ended(self, good: int, broken: int, now: float) -> bool:
        """So many generations ended; returns whether this tripped the breaker."""
        if not good and not broken:
            return False
        if self._opened_at is not None:
            return self._probed(good, broken, now)
        self._count(good, broken, now)
        if not broken:
            return False
        all_good, all_broken = sum(part[1] for part in self._ends), sum(part[2] for part in self._ends)
        if all_broken < self._limits.failures or all_broken <= all_good:
            return False
        self._trip(now, breaks=True)
        return True

    def _probed(self, good: int, broken: int, now: float) -> bool:
        """Generations ended while it is not closed; those that ended before a probe was sent do not count."""
        if self.state(now) == "open" or self._probe_at is None:
            return False
        if broken > good:
            self._trip(now, breaks=True)
            return True
        self._close()
        return False

    def _count(self, good: int, broken: int, now: float) -> None:
        window_s = self._limits.window_s
        while self._ends and now - self._ends[0][0] > window_s:
            self._ends.popleft()
        if self._ends and now - self._ends[-1][0] < window_s / _PARTS:
            began, good_before, broken_before = self._ends.pop()
            self._ends.append((began, good_before + good, broken_before + broken))
        else:
            self._ends.append((now, good, broken))

    def _trip(self, now: float, breaks: bool) -> None:
        if self._opened_at is not None:
            self._open_s = min(self._limits.max_open_s, self._open_s * 2)
        self._opened_at, self._probe_at, self._breaks = now, None, breaks
        self._lost_at.clear()
        self._ends.clear()

    def _close(self) -> None:
        self._opened_at = self._probe_at = None
        self._breaks = False
        self._open_s = self._limits.open_s
