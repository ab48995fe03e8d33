"""Counts how the requests of a group end: as they should, or through a fault of the group.

Routers compare the two counts, and give less work, or none, to a group whose requests break. A request that
fails in an unexpected way says nothing of the group by itself: its content may be what our code, or the
model, cannot stand. So the group then runs a request of its own, whose content is known to be good (a
control). If that one fails as well, the failures are the group's; if it is answered, they are confined to
their requests.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from services.worker.domain.generation.failure_owners import GUEST, NOT_FINITE, owner_of
from shared.errors import InvalidRequest, RyzError

Control = Literal["passed", "failed", "undecided"]
WINDOW_S = 10.0  # that of the routers' breakers, by default
TENANTS = 3  # a caller has one key: so many tenants are no single attacker
_MOST_UNCLEAR = 1000  # failures that one control decides


@dataclass(slots=True)
class RequestCounts:
    """Counts since the leader's start.

    Attributes:
        taken: `Work` messages for this leader.
        ended: Requests that the engine computed as it should: those that are done, and those whose caller
            left or was late after the first token. A refused request is no evidence that the group works.
        broken: Requests that a fault of the group ended, and controls that failed.
        confined: Requests that failed in an unexpected way while the group could serve others.
    """

    taken: int = 0
    ended: int = 0
    broken: int = 0
    confined: int = 0
    _unclear: list[tuple[float, str, bool]] = field(default_factory=list)  # when, tenant, by the engine
    _judged: list[tuple[float, str, bool]] = field(default_factory=list)  # by the control that runs
    _doubted: deque[tuple[float, str]] = field(default_factory=deque)  # confined ones of the engine
    _fails: bool = False  # the last control failed

    def count_taken(self) -> None:
        """Counts a `Work` message."""
        self.taken += 1

    def count_done(self) -> None:
        """Counts a request that was answered."""
        self.ended += 1

    def count_failed(self, error: RyzError, *, tenant: str, served: bool, now: float) -> None:
        """Counts a request that failed.

        Args:
            served: It had a token.
            now: Monotonic seconds.
        """
        owner = owner_of(error)
        if owner == "caller" and served:
            self.ended += 1
        elif owner == "group" and error.data.get("reason") == GUEST:
            self.broken += 1
        elif owner == "unclear" and len(self._unclear) < _MOST_UNCLEAR:
            self._unclear.append((now, tenant, error.data.get("reason") == NOT_FINITE))

    @property
    def wants_control(self) -> bool:
        """Whether a control is to be run: failures are not decided, or the last control failed."""
        return bool(self._unclear) or self._fails

    def begin_control(self) -> None:
        """Begins a control, which decides the failures so far; later ones need another control."""
        self._judged += self._unclear
        self._unclear = []

    def count_control(self, outcome: Control, now: float) -> int:
        """Decides the failures before the control that began last.

        Failures of the engine count against the group also if the control passed, once three tenants have met
        them within the window: a part of the weights may be damaged that the control does not touch.

        Args:
            outcome: Of the control; undecided if something else ended it, such as a drain.
            now: Monotonic seconds.

        Returns:
            How many failures were confined to their requests.
        """
        unclear, self._judged = self._judged, []
        if outcome == "undecided":
            self._unclear = unclear + self._unclear
            return 0
        if outcome == "failed":
            self.broken += len(unclear) + 1
            self._fails = True
            return 0
        if self._fails:
            self._fails = False
            self.ended += 1  # a router that waits for a good end sees that the group has recovered
        self._doubted += [(when, tenant) for when, tenant, by_engine in unclear if by_engine]
        while self._doubted and now - self._doubted[0][0] > WINDOW_S:
            self._doubted.popleft()
        number = len(unclear)
        if len({tenant for _, tenant in self._doubted}) >= TENANTS:
            self.broken += len(self._doubted)
            number -= sum(by_engine for _, _, by_engine in unclear)
            self._doubted.clear()
        self.confined += number
        return number


def outcome_of(error: RyzError | None) -> Control:
    """Returns what the end of a control says; a model that refuses the control's form passes it."""
    if error is None or isinstance(error, InvalidRequest):
        return "passed"
    return "failed" if owner_of(error) == "unclear" else "undecided"
