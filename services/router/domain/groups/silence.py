"""How long a group may be silent, and common silence, which is no sign of the loss of one. Pure.

Groups share the broker, this router and often a machine. If no group has been heard for some intervals, the
fault lies there, and silence timers stop; for each group for as long as its limit at most, and as long as
both together are within the bound of all limits (`SilenceLimits.most_common_s`).
"""

from math import inf

from services.router.domain.groups.busy_machine import BusyMachine
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.groups.group import Group

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


class SilenceLimits:
    """The limit of each group's silence, with what slows down all that this router hears."""

    def __init__(self, limits: FleetLimits) -> None:
        self._limits = limits
        self._machine = BusyMachine()  # this router's
        self._delay_s = self._patience_s = 0.0

    def note_delays(self, delay_s: float, pressure: float, now: float) -> None:
        """Notes the delays of the broker and of this router's machine; see `Fleet.expire`."""
        self._machine.note(pressure, now)
        self._delay_s, self._patience_s = delay_s, self._machine.patience_s(now)

    def timeout_s(self, group: Group) -> float:
        """Returns the seconds of its own silence after which a group is lost."""
        patience = self._limits.patience
        return group.timeout_s(self._usual_s(group), patience, self._delay_s, self._patience_s)

    def most_common_s(self, group: Group) -> float:
        """Returns the most seconds of common silence that do not count against a group."""
        usual_s, timeout_s = self._usual_s(group), self.timeout_s(group)
        return min(timeout_s, max(usual_s, usual_s * self._limits.patience - timeout_s))

    def _usual_s(self, group: Group) -> float:
        """The limit of a calm group."""
        limits = self._limits
        return limits.missed_heartbeats * group.heartbeat.interval_ms / 1000 + limits.router_heartbeat_slack_s
