"""How the group's requests end: as they should, or through a fault of the group. Pure.

Routers compare the two counts and give a group less work, or none, whose requests break.
"""

from dataclasses import dataclass

from shared.errors import GroupLost, Internal, RyzError


@dataclass(slots=True)
class RequestCounts:
    """Counts since the leader's start.

    A fault of the group's own is a bug, or a model that gives no token. What a caller did wrong, its
    deadline, its cancel and a place given up are not. A lost engine counts for nothing: the group says itself
    that it is away, and how long it pauses is decided where it is started again.
    """

    ended: int = 0
    broken: int = 0

    def count(self, error: RyzError | None = None) -> None:
        """One request ended; without an error it is done."""
        if isinstance(error, GroupLost):
            return
        if isinstance(error, Internal):
            self.broken += 1
        else:
            self.ended += 1
