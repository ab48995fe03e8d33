"""A circuit breaker for one group: pure, fed with how things end, asked before a group is chosen.

Closed: all pass. Open: none pass until `open_s` is over; each time it trips again without a success in
between the time doubles, up to `max_open_s`. Half-open: one request passes, and its end decides. Failures
that count today are missing responders and lost heartbeats; the ends of generations are fed in the same way.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """`failures` within `window_s` seconds trip the breaker."""

    failures: int = 3
    window_s: float = 10.0
    open_s: float = 0.5
    max_open_s: float = 10.0


class Breaker:
    """See the module's text. `now` is monotonic seconds everywhere."""

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._failed_at: deque[float] = deque(maxlen=limits.failures)
        self._opened_at: float | None = None
        self._open_s = limits.open_s
        self._probe_at: float | None = None

    def state(self, now: float) -> BreakerState:
        """What it is at this moment."""
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + self._open_s else "half_open"

    def allows(self, now: float) -> bool:
        """Whether a request may go to the group. In half-open state only until one was sent.

        A probe that nobody reported on within `open_s` does not block the next one.
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

    def sent(self, now: float) -> None:
        """A request went to the group."""
        if self._opened_at is not None and self.state(now) == "half_open":
            self._probe_at = now

    def succeeded(self) -> None:
        """Something ended well: closes, and forgets all failures."""
        if self._opened_at is None and not self._failed_at:
            return
        self._failed_at.clear()
        self._opened_at = self._probe_at = None
        self._open_s = self._limits.open_s

    def failed(self, now: float) -> bool:
        """Something ended badly; True when this tripped the breaker."""
        if self._opened_at is not None:
            if self.state(now) == "open":
                return False  # a late failure of a request sent before it tripped
            self._open_s = min(self._limits.max_open_s, self._open_s * 2)
            self._opened_at, self._probe_at = now, None
            return True
        self._failed_at.append(now)
        if len(self._failed_at) < self._limits.failures or now - self._failed_at[0] > self._limits.window_s:
            return False
        self._failed_at.clear()
        self._opened_at, self._probe_at = now, None
        return True
