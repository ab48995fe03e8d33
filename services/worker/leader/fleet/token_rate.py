"""The speed of the group: a moving average of tokens per second."""

import math

HALF_LIFE_S = 2.0


class TokenRate:
    """Tokens per second from a running total, smoothed with a half-life of two seconds."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: tuple[int, float] | None = None

    def update(self, total: int, now: float) -> float:
        """Takes the total so far; returns the rate. A second call at the same time returns the same."""
        if self._last is None:
            self._last = (total, now)
            return self._rate
        seconds = now - self._last[1]
        if seconds > 0:
            kept = math.exp2(-seconds / HALF_LIFE_S)
            self._rate = kept * self._rate + (1 - kept) * (total - self._last[0]) / seconds
            self._last = (total, now)
        return self._rate
