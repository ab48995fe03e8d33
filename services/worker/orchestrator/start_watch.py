"""The time limit of a start of the ranks, counted in time that the processes which still load could use."""

from collections.abc import Mapping

from services.worker.orchestrator.process_readings import ProcessReading
from services.worker.orchestrator.usable_time import shared_usable_s
from services.worker.rank_protocol.run_config import STRETCH

_INTERVAL_S = 0.5


class StartWatch:
    """Counts the time of one start. Time for which a process waited for a core or was served by a disk is left out.

    Args:
        limit_s: Counted time after which the start is late; in all, at most `STRETCH` times as much passes.
        now: When the start began.

    Attributes:
        interval_s: Time between two checks.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        self.interval_s = min(_INTERVAL_S, limit_s / 5)
        self._limit_s = limit_s
        self._checked_at = now
        self._counted_s = 0.0
        self._readings: Mapping[int, ProcessReading | None] = {}

    def is_late(self, now: float, readings: Mapping[int, ProcessReading | None]) -> bool:
        """Return True if the limit has passed.

        Args:
            now: In seconds, on the clock of the start.
            readings: The counts of each process for which the start waits, by process id; None: it is gone.
        """
        passed_s = min(now - self._checked_at, 2 * self.interval_s)
        before, self._readings, self._checked_at = self._readings, readings, now
        counted_s = shared_usable_s([(before.get(key), read) for key, read in readings.items()], passed_s)
        self._counted_s += max(counted_s, passed_s / STRETCH)
        return self._counted_s >= self._limit_s
