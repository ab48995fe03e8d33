"""A time limit on processes, counted in time that they could use."""

from collections.abc import Mapping

from services.worker.orchestrator.process_readings import ProcessReading
from services.worker.orchestrator.usable_time import shared_usable_s
from services.worker.rank_protocol.run_config import STRETCH

_INTERVAL_S = 0.5


class UsableLimit:
    """Counts the time of one wait, without the time for which processes waited for a core or a disk.

    Args:
        limit_s: Counted time after which they are late; in all, at most `STRETCH` times as much passes.
        now: When the wait began.

    Attributes:
        interval_s: Seconds between two checks.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self.interval_s = min(_INTERVAL_S, limit_s / 5)
        self._limit_s = limit_s
        self._checked_at = now
        self._counted_s = 0.0
        self._readings: Mapping[int, ProcessReading | None] = {}

    def is_late(self, now: float, readings: Mapping[int, ProcessReading | None]) -> bool:
        """Return True if the limit has passed; to be called every `interval_s`.

        Args:
            now: In seconds, on the same clock as when the wait began.
            readings: The counts of each process that is waited for, by process id; None: it is gone.
        """
        passed_s = min(now - self._checked_at, 2 * self.interval_s)
        before, self._readings, self._checked_at = self._readings, readings, now
        counted_s = shared_usable_s([(before.get(key), read) for key, read in readings.items()], passed_s)
        self._counted_s += max(counted_s, passed_s / STRETCH)
        return self._counted_s >= self._limit_s
