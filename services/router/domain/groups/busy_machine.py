"""How much longer silence is waited for while a machine is busy. Pure.

On a machine on which a process waits for a core for such a share of the time, heartbeats may be later than
any before: with 24 busy loops on two cores the gaps grew from 40 to 230 ms within a second, and a heartbeat
passes through three processes.
"""

from math import inf

# The first share is that of a machine that has more to do than cores, the second of one that computes.
_BUSY = ((0.95, 4.0), (0.6, 0.75))  # and the seconds of silence that are waited for
_BUSY_TIME_S = 10.0  # since the pressure was that high


class BusyMachine:
    """Remembers the pressure of one machine. `now` is monotonic seconds everywhere."""

    def __init__(self) -> None:
        self._until, self._patience_s = -inf, 0.0

    def note(self, pressure: float, now: float) -> None:
        """Notes for which share of the time a process of the machine waited for a core of late."""
        for busy, patience_s in _BUSY:
            if pressure >= busy:
                if patience_s >= self._patience_s or now >= self._until:
                    self._patience_s, self._until = patience_s, now + _BUSY_TIME_S
                return

    def patience_s(self, now: float) -> float:
        """The seconds of silence that its processes are allowed at least; 0 on a calm machine."""
        return self._patience_s if now < self._until else 0.0
