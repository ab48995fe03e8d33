"""Silence of all groups at once, which is no sign of the loss of one. Pure.

Groups share the broker, this router and often a machine. If no group has been heard for some intervals, the
fault lies there, and silence timers stop; for each group for as long as its limit at most, and as long as
both together are within the bound of all limits (`Fleet.expire`).
"""

from math import inf

_INTERVALS = 2.0  # between heartbeats; longer silence is common silence


class CommonSilence:
    """How long no group at all has been heard. `now` is monotonic seconds everywhere."""

    def __init__(self) -> None:
        self._heard_at = -inf  # the last heartbeat of any group

    def end(self, now: float) -> None:
        """Notes a heartbeat of any group."""
        self._heard_at = now

    def length_s(self, now: float, usual_s: float) -> float:
        """Returns the seconds of silence beyond `usual_s`, the usual time between heartbeats.

        0 if it is short.
        """
        silence_s = now - self._heard_at
        return silence_s - usual_s if silence_s > _INTERVALS * usual_s else 0.0
