"""Which waiting sequence is admitted next: parties by credit, and within a party by priority.

A resumed sequence goes before all others: it had its turn in the group that was lost. Light parties are next
(`deficits.py`). Of the parties with credit that goes first of which a sequence finds
the most of its prompt in the cache (longest prefix first, as in DLPM). A sequence passes others of its own
party only if it has the same priority and is among the first `AHEAD`; every `AHEAD`th time the party's first
one goes. If no party has credit, that with the most goes: nothing is idle while a sequence can run. A
priority counts within a party alone, but for the lowest, that of background work, which goes last unless its
floor is due.
"""

from collections.abc import Callable, Mapping, Set

from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.fairness.fair_shares import FairShares
from services.worker.domain.scheduling.sequence import Sequence

AHEAD = 4  # sequences of a party that are looked at
MAX_LOOKED_AT = 32  # of all parties
MAX_PARTIES = 4096  # that are counted
_Rank = tuple[int, int, float, tuple[int, int]]  # class, tokens found, credit, order; the least goes first
_RESUMED, _LIGHT, _HAS_CREDIT, _OWES = 0, 1, 2, 3


class PartyOrder:
    """Chooses among waiting sequences.

    Args:
        fair: Has the credits of parties, and how many running slots one may have.
        find: Returns how many tokens of a sequence the cache has, about.
    """

    def __init__(self, fair: FairShares, find: Callable[[Sequence], int]) -> None:
        self._fair = fair
        self._find = find
        self._times = dict[str, int]()  # sequences of a party that went, while several parties wait

    def next_waiting(
        self,
        waiting: Mapping[str, list[Sequence]],
        running: Mapping[str, int],
        passed: Set[int],
        booked: Mapping[str, float],
    ) -> Sequence | None:
        """Returns the waiting sequence that is next; None if those that are left have to wait.

        Args:
            waiting: Each party's sequences, in order.
            running: How many slots each party has.
            passed: The `id()`s of sequences that cannot come in now.
            booked: What prompts that were admitted will be charged, by party.
        """
        if len(waiting) == 1:
            self._times.clear()
            for party, queue in waiting.items():
                if running.get(party, 0) < self._fair.slots.most:
                    return _first(queue, passed)
            return None
        return self._of_class(waiting, running, passed, booked, background=False) or self._of_class(
            waiting, running, passed, booked, background=True
        )

    def next_background(
        self,
        waiting: Mapping[str, list[Sequence]],
        running: Mapping[str, int],
        passed: Set[int],
        booked: Mapping[str, float],
    ) -> Sequence | None:
        """Returns the sequence of background work that is next, while others wait before it."""
        last = {party: queue for party, queue in waiting.items() if is_background(queue[-1])}
        behind = {party: [one for one in queue if is_background(one)] for party, queue in last.items()}
        return self._of_class(behind, running, passed, booked, background=True) if behind else None

    def note_admitted(self, sequence: Sequence) -> None:
        """Counts a sequence that was admitted."""
        if self._times or self._fair.has_several:
            if len(self._times) >= MAX_PARTIES:
                self._times.clear()
            self._times[sequence.party] = self._times.get(sequence.party, 0) + 1

    def _of_class(
        self,
        waiting: Mapping[str, list[Sequence]],
        running: Mapping[str, int],
        passed: Set[int],
        booked: Mapping[str, float],
        *,
        background: bool,
    ) -> Sequence | None:
        parties: list[tuple[int, float, str]] = []
        for party, queue in waiting.items():
            if running.get(party, 0) >= self._fair.slots.most:
                continue
            first = _first(queue, passed)
            if first is not None and is_background(first) == background:
                deficits = self._fair.of(first)
                credit = deficits.credit(party) - booked.get(party, 0.0) / deficits.weight(party)
                parties.append((self._standing(first, credit), -credit, party))
        parties.sort()
        best: Sequence | None = None
        best_rank: _Rank | None = None
        looked_at = 0
        for standing, minus_credit, party in parties:
            owes = standing == _OWES
            if best_rank is not None and (owes or standing > best_rank[0] or looked_at >= MAX_LOOKED_AT):
                break  # another party goes before it, or as many as may be were looked at
            for sequence in self._candidates(party, waiting[party], passed):
                looked_at += 1
                rank = (standing, 0 if owes else -self._find(sequence), minus_credit, sequence.order)
                if best_rank is None or rank < best_rank:
                    best, best_rank = sequence, rank
                if owes:
                    break
        return best

    def _standing(self, first: Sequence, credit: float) -> int:
        """Returns the class of a party by its first sequence and its credit."""
        if first.resumed:
            return _RESUMED
        return _OWES if credit <= 0 else _LIGHT if self._fair.is_light(first) else _HAS_CREDIT

    def _candidates(self, party: str, queue: list[Sequence], passed: Set[int]) -> list[Sequence]:
        """Returns the sequences of a party that may be next, in order."""
        found: list[Sequence] = []
        most = 1 if self._times.get(party, 0) % AHEAD == 0 else AHEAD
        for sequence in queue:
            if id(sequence) in passed:
                continue
            if found and (sequence.priority != found[0].priority or has_begun(found[0])):
                break
            found.append(sequence)
            if len(found) >= most:
                break
        return found


def has_begun(sequence: Sequence) -> bool:
    """Returns whether a waiting sequence has begun: its caller has tokens of it."""
    return sequence.num_preemptions > 0 or sequence.resumed


def _first(queue: list[Sequence], passed: Set[int]) -> Sequence | None:
    for sequence in queue:
        if id(sequence) not in passed:
            return sequence
    return None
