"""Limits warnings that senders can cause at any rate: one of a kind is logged in each interval.

A message that cannot be decoded costs its sender a few bytes, but a log line some hundred. Metrics count all.
"""

import time
from collections.abc import Callable
from typing import Any

import structlog

INTERVAL_S = 10.0
MAX_KINDS = 256


class RepeatedLog:
    """Logs warnings to `log`. Warnings with the same event and subject are of one kind."""

    def __init__(
        self, log: structlog.typing.FilteringBoundLogger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # last time, and how many left out

    def warning(self, event: str, *, subject: str, **fields: Any) -> None:
        """Logs a warning, with the number of those left out before as `more`; or counts it as left out."""
        kind = event, subject
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = event, ""  # senders choose these subjects
        now = self._clock()
        last = self._kinds.get(kind)
        if last is not None and now - last[0] < INTERVAL_S:
            self._kinds[kind] = last[0], last[1] + 1
            return
        self._kinds[kind] = now, 0
        if last is not None and last[1]:
            fields["more"] = last[1]
        self._log.warning(event, subject=subject, **fields)
