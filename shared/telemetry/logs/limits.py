"""Limits log lines: of each kind a few in every interval, the others are counted.

Lines of one kind have the same level, the same event and the same type of exception. What was left out is
reported by a line of its own when the interval is over, and by metrics. Lines that an operator asked for one
by one (`request`, with RYZ_REQUEST_LOG) are never left out.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from shared.telemetry.logs.schema import LEVELS

INTERVAL_S = 10.0
MAX_KINDS = 256  # in one interval; of further kinds, one limit for each level
LEFT_OUT = "log lines left out"
ALWAYS = frozenset({"request", LEFT_OUT})
_METHODS = {"warn": "warning", "exception": "error", "fatal": "critical"}
Kind = tuple[str, str, str]


class LogLimiter:
    """Decides for each line whether it is written. Threads may share it.

    Args:
        burst: Lines of one kind in an interval; 0: all.
        clock: Monotonic seconds.

    Attributes:
        written: Lines that were written, by level.
        left_out: Lines that were not written, by level.
    """

    def __init__(self, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.written = dict.fromkeys(LEVELS, 0)
        self.left_out = dict.fromkeys(LEVELS, 0)
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Kind, int] = {}
        self._ends = clock() + INTERVAL_S

    def __call__(self, _: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Lets a line of structlog pass, or raises `DropEvent`: a processor."""
        what = str(event.get("event", ""))
        if self.takes(_METHODS.get(method, method), what, _exception_name(event.get("exc_info"))):
            return event
        raise structlog.DropEvent

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets a line of the standard library's loggers pass: a filter of a handler."""
        level = record.levelname.lower()
        name = _exception_name(record.exc_info)
        return self.takes(level if level in self.written else "info", f"{record.name} {record.msg}", name)

    def takes(self, level: str, event: str, exception: str = "") -> bool:
        """Counts a line and returns whether it is written."""
        now = self._clock()
        if now >= self._ends:
            self.report_left_out(now)
        with self._lock:
            if not self._burst or event in ALWAYS:
                self.written[level] += 1
                return True
            kinds, kind = self._kinds, (level, event, exception)
            count = kinds.get(kind, 0)
            if not count and len(kinds) >= MAX_KINDS:
                kind = level, "", ""
                count = kinds.get(kind, 0)
            kinds[kind] = count + 1
            if count < self._burst:
                self.written[level] += 1
                return True
            self.left_out[level] += 1
            return False

    def report_left_out(self, now: float) -> None:
        """Begins a new interval, and logs what was left out in the one that ended."""
        with self._lock:
            if now < self._ends:
                return
            over = {kind: count - self._burst for kind, count in self._kinds.items() if count > self._burst}
            self._kinds.clear()
            self._ends = now + INTERVAL_S
        log = structlog.get_logger(__name__)
        for (level, event, exception), count in over.items():
            fields = {"exception_type": exception} if exception else {}
            write = log.error if level in ("error", "critical") else log.warning
            write(LEFT_OUT, of=event or "other events", of_level=level, count=count, **fields)

    async def report_regularly(self) -> None:
        """Reports the last lines of a flood as well, after which no line comes; runs until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.report_left_out(self._clock())


def _exception_name(exc_info: Any) -> str:
    if not exc_info:
        return ""
    if isinstance(exc_info, BaseException):
        return type(exc_info).__name__
    kind = exc_info[0] if isinstance(exc_info, tuple) else sys.exc_info()[0]
    return kind.__name__ if kind is not None else ""
