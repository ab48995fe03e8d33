"""Adapters that could not be loaded: why, and from when on the next request may try again.

Files that are damaged stay so, mostly, so each failure in a row doubles the pause. Meanwhile requests fail at
once with the same reason.
"""

from dataclasses import dataclass

FIRST_S, LONGEST_S = 1.0, 60.0  # pauses
MAX_FAILURES = 1024  # adapters that are remembered; beyond it the oldest failure is forgotten


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    pause_s: float
    until: float


class LoadFailures:
    """Failures by fingerprint."""

    def __init__(self) -> None:
        self._known: dict[str, _Failure] = {}

    def add(self, fingerprint: str, reason: str, now: float) -> None:
        """Notes a failure."""
        before = self._known.pop(fingerprint, None)
        pause_s = FIRST_S if before is None else min(LONGEST_S, 2 * before.pause_s)
        self._known[fingerprint] = _Failure(reason, pause_s, now + pause_s)
        while len(self._known) > MAX_FAILURES:
            del self._known[next(iter(self._known))]

    def forget(self, fingerprint: str) -> None:
        """Forgets failures of an adapter that could be loaded."""
        self._known.pop(fingerprint, None)

    def reason(self, fingerprint: str, now: float) -> str:
        """Returns why an adapter is not to be loaded now; empty: it may be."""
        known = self._known.get(fingerprint)
        return known.reason if known is not None and now < known.until else ""
