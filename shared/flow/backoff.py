"""Pauses between attempts that double with each failure, up to a limit."""

import random

_MAX_EXPONENT = 64  # failures may be any number, and floats end at 2**1024


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """Returns the seconds to wait after so many failures: `first_s` after none, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures, _MAX_EXPONENT))


class Backoff:
    """Counts failures in a row and draws pauses that are up to half shorter than `backoff_s`.

    The jitter keeps clients that lost their server at the same time from coming back in step.
    """

    def __init__(self, first_s: float = 0.05, longest_s: float = 1.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self) -> float:
        """Returns the pause before the next attempt, and counts a failure."""
        pause_s = backoff_s(self._failures, self._first_s, self._longest_s)
        self._failures += 1
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: the next pause is a first one again."""
        self._failures = 0
