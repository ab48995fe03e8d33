"""How the group's requests end: as they should, or through a fault of the group. Pure.

Routers compare the two counts and give a group less work, or none, whose requests break.
"""

from dataclasses import dataclass

from shared.errors import GroupLost, Internal, RyzError


def is_own_fault(error: RyzError) -> bool:
    """Whether an end with this error says something bad of the group: a bug, no token, a lost engine.

    What a caller did wrong, its deadline, its cancel, a place given up and a drain do not.
    """
    if isinstance(error, GroupLost):
        return error.data.get("reason") != "draining"
    return isinstance(error, Internal)


@dataclass(slots=True)
class Endings:
    """Counts since the leader's start."""

    ended: int = 0
    broken: int = 0

    def count(self, error: RyzError | None = None) -> None:
        """One request ended; without an error it is done."""
        if error is not None and is_own_fault(error):
            self.broken += 1
        else:
            self.ended += 1
