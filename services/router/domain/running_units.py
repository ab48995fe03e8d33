"""The running requests of services outside that one router counts for limits, from admission to end. Pure.

A leader reports what runs and what has ended (`RunningReport`). What no report has named for `UNHEARD_S`
counts no longer, so neither a lost report nor a lost leader keeps a unit.
"""

from collections.abc import Callable, Sequence

from shared.limits.lease import Lease

UNHEARD_S = 15.0  # some reports; routers give up a leader that stands still before
AttemptKey = tuple[str, str, int]  # tenant, request id, attempt
Claim = Sequence[tuple[Lease, int, int]]  # as `LeaseBook.put_back` takes it


class RunningUnit:
    """What one request has taken of limits of running requests.

    Attributes:
        counted_by: The subject on which leaders report on the request.
        group: Where it was sent; empty: nowhere yet.
        instance_id: The leader that is meant.
        heard_at: When it was sent or reported last.
    """

    __slots__ = ("_book", "claim", "counted_by", "group", "heard_at", "instance_id", "key")

    def __init__(
        self, book: "RunningUnits", key: AttemptKey, claim: Claim, counted_by: str, now: float
    ) -> None:
        self.key = key
        self.claim = claim
        self.counted_by = counted_by
        self.group = self.instance_id = ""
        self.heard_at = now
        self._book = book

    def note_at(self, group: str, instance_id: str, now: float) -> None:
        """The request is with a group, or on its way there."""
        self.group, self.instance_id, self.heard_at = group, instance_id, now

    def note_returned(self) -> None:
        """The group that it was sent to is gone."""
        self.group = self.instance_id = ""

    def note_refused(self) -> None:
        """A router refuses the request. If a group has it, this was a copy, and the request goes on."""
        if not self.group:
            self.end()

    def end(self) -> None:
        """Gives the units back; a second call does nothing."""
        self._book.end(self.key)


class RunningUnits:
    """The units of one router.

    Args:
        give_back: Takes the claims of what has ended.
        counted_by: The router's subject for reports.
    """

    def __init__(self, give_back: Callable[[Claim], None], counted_by: str) -> None:
        self._give_back = give_back
        self._counted_by = counted_by
        self._units: dict[AttemptKey, RunningUnit] = {}

    def __len__(self) -> int:
        return len(self._units)

    def find(self, key: AttemptKey) -> RunningUnit | None:
        """Returns the unit of a request; None if it has none."""
        return self._units.get(key)

    def hold(self, key: AttemptKey, claim: Claim, now: float) -> RunningUnit:
        """Keeps what a request has taken. Of two copies that took at the same time one counts."""
        unit = self._units.get(key)
        if unit is not None:
            self._give_back(claim)
            return unit
        unit = self._units[key] = RunningUnit(self, key, claim, self._counted_by, now)
        return unit

    def end(self, key: AttemptKey) -> None:
        """Gives back what a request has; nothing for one that is not known."""
        unit = self._units.pop(key, None)
        if unit is not None:
            self._give_back(unit.claim)

    def end_group(self, group: str, instance_id: str) -> None:
        """Gives back what the requests of a lost leader have."""
        for unit in [*self._units.values()]:
            if (unit.group, unit.instance_id) == (group, instance_id):
                unit.end()

    def expire(self, now: float) -> None:
        """Gives back what requests have that no leader reports."""
        for unit in [*self._units.values()]:
            if now - unit.heard_at >= UNHEARD_S:
                unit.end()
