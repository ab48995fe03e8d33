"""Decides whether a service that died is started again, and when. Pure: the time is an argument."""

import signal
from collections import deque
from dataclasses import dataclass, field

from shared.flow.backoff import backoff_s

MISCONFIGURED = 2  # exit code of a service that refuses its settings, which a restart does not change


@dataclass(slots=True)
class RestartPolicy:
    """Allows `max_restarts` in `window_s`; the pause doubles from `first_pause_s` up to `max_pause_s`.

    One that has served for `settled_s` was well: its death has another cause than those before it. A service
    that was ready and killed from outside counts for the pause alone, since the next one may well live on.
    """

    max_restarts: int = 5
    window_s: float = 60.0
    first_pause_s: float = 0.2
    max_pause_s: float = 1.5
    settled_s: float = 2.0
    _deaths: deque[float] = field(default_factory=deque)
    _kills: int = 0  # from outside, since the last one that was well

    def pause_after(
        self, exit_code: int, now: float, served_s: float = 0.0, *, memory_short: bool = False
    ) -> float | None:
        """Return the seconds to wait before the next start; None to give up.

        Args:
            now: The time, in seconds.
            served_s: Seconds since it was ready; 0: it never was.
            memory_short: The kernel ended processes meanwhile because memory was short.
        """
        if exit_code == MISCONFIGURED:
            return None
        if served_s >= self.settled_s:
            self._deaths.clear()
            self._kills = 0
        while self._deaths and now - self._deaths[0] > self.window_s:
            self._deaths.popleft()
        if exit_code == -signal.SIGKILL and served_s > 0 and not memory_short:
            self._kills += 1
        elif len(self._deaths) >= self.max_restarts:
            return None
        else:
            self._deaths.append(now)
        return backoff_s(len(self._deaths) + self._kills - 1, self.first_pause_s, self.max_pause_s)
