"""Counts how the requests of a group end: as they should, or through a fault of the group.

Routers compare the two counts, and give less work, or none, to a group whose requests break.
"""

from dataclasses import dataclass

from shared.errors import GroupLost, Internal, RyzError


@dataclass(slots=True)
class RequestCounts:
    """Counts since the leader's start.

    A fault of the group is a bug, or a model that gives no token. A wrong request, a deadline that passed, a
    cancel and a displaced request are none. A lost engine counts for nothing: the group's state shows it, and
    when the engine is started again is decided elsewhere.

    Attributes:
        taken: `Work` messages for this leader.
        ended: Requests that ended without a fault of the group.
        broken: Requests that a fault of the group ended.
    """

    taken: int = 0
    ended: int = 0
    broken: int = 0

    def count_taken(self) -> None:
        """Counts a `Work` message."""
        self.taken += 1

    def count_end(self, error: RyzError | None = None) -> None:
        """Counts the end of a request; without an error it is done."""
        if isinstance(error, GroupLost):
            return
        if isinstance(error, Internal):
            self.broken += 1
        else:
            self.ended += 1
