"""Warnings that others can cause as often as they like: the first of a kind is logged, then one an interval.

A message that cannot be decoded costs its sender a few bytes and a line of a log some hundred. Metrics count
each of them.
"""

import time
from collections.abc import Callable
from typing import Any

import structlog

INTERVAL_S = 10.0
MAX_KINDS = 256


class RepeatedLog:
    """Warnings of one service. log: where they go. They are of one kind if event and subject are the same."""

    def __init__(
        self, log: structlog.typing.FilteringBoundLogger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # when logged last, and how many since

    def warning(self, event: str, *, subject: str, **fields: Any) -> None:
        """Logs it, with the number that was left out before as `more`, or counts it."""
        kind = event, subject
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = event, ""  # subjects that others make up
        now = self._clock()
        last = self._kinds.get(kind)
        if last is not None and now - last[0] < INTERVAL_S:
            self._kinds[kind] = last[0], last[1] + 1
            return
        self._kinds[kind] = now, 0
        if last is not None and last[1]:
            fields["more"] = last[1]
        self._log.warning(event, subject=subject, **fields)
