"""Detects two leaders under one group's name by their heartbeats. Pure: time is an argument.

The instance that appeared last has the group. The others are former instances, whose heartbeats are ignored.
A few of them are on their way when a leader is replaced. A former instance that goes on sending them lives:
requests go to one of the two only, but operators should know.
"""

from dataclasses import dataclass

REMEMBERED = 8  # former instances of a group
SETTLE_S = 1.0  # after a restart, in which the last heartbeats of the former instance may arrive
LIVES_S = 5.0  # without a heartbeat, after which a rival is taken to have ended
TELL_EVERY_S = 60.0


@dataclass(slots=True)
class Rival:
    """A former instance that still sends heartbeats; `reported_at`: when it was logged last, or None."""

    instance_id: str
    heard_at: float
    reported_at: float | None = None


class Rivals:
    """Former instances by group, and which of them live."""

    def __init__(self) -> None:
        self._former: dict[str, dict[str, float]] = {}  # by group: when each instance was replaced
        self._rivals: dict[str, Rival] = {}

    def replaced(self, group: str, instance_id: str, now: float) -> None:
        """Another instance has the group from now on."""
        former = self._former.setdefault(group, {})
        former[instance_id] = now
        while len(former) > REMEMBERED:
            del former[next(iter(former))]

    def is_former(self, group: str, instance_id: str) -> bool:
        """Whether that instance had the group before."""
        return instance_id in self._former.get(group, ())

    def lives(self, group: str, instance_id: str, now: float) -> bool:
        """Whether a heartbeat of that former instance, now, was sent after it was replaced."""
        return now - self._former[group][instance_id] >= SETTLE_S

    def heard(self, group: str, instance_id: str, now: float) -> bool:
        """A former instance that is not about to end sent a heartbeat; returns whether to log it."""
        if not self.lives(group, instance_id, now):
            return False
        rival = self._rivals.get(group)
        if rival is None or rival.instance_id != instance_id:
            rival = self._rivals[group] = Rival(instance_id, now)
        rival.heard_at = now
        if rival.reported_at is not None and now - rival.reported_at < TELL_EVERY_S:
            return False
        rival.reported_at = now
        return True

    def of(self, group: str, now: float) -> str:
        """The other instance that lives under that name; an empty text if there is none."""
        rival = self._rivals.get(group)
        return rival.instance_id if rival is not None and now - rival.heard_at <= LIVES_S else ""

    def forget(self, group: str) -> None:
        """The group is forgotten."""
        self._former.pop(group, None)
        self._rivals.pop(group, None)
