"""Charges parties for what steps compute, and says whose turn it is.

Background work is a class of its own: its parties have credits of their own, and `BackgroundFloor` says what
the class gets beside other requests. A token of a prompt costs 1. A token that is decoded costs what a row
takes in a step that only decodes, by the measured time of a prompt's token: charging by measured cost is that
of Equinox (arXiv 2508.16646). While a single party is there nothing is counted.

`BackgroundFloor`: a floor for background work: a small share of all tokens, so that it is slow but never
starved.

Other requests go before it (decision 0035), so a group that always has some would never come to it. While it
waits it saves up a fiftieth of what the others are charged. Once that is worth a chunk, one background
sequence gets a lease: it is admitted before others, keeps its slot, and goes on beside their prompts, until
what was saved is used up and it has got on by a token. Pure.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.fairness.deficits import Deficits
from services.worker.domain.scheduling.fairness.slot_share import SlotShare
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.step_draft import PlannedChunk

FLOOR = 0.02  # of the weighted tokens of others
LEAST = 32.0  # weighted tokens that a lease is worth
MOST = 256.0  # that can be saved


class BackgroundFloor:
    """What background work has saved, and the sequence that uses it.

    Attributes:
        leased: The sequence that goes beside others; None if none may.
    """

    def __init__(self) -> None:
        self.leased: Sequence | None = None
        self._saved = 0.0
        self._begun_with = 0

    @property
    def is_due(self) -> bool:
        """Whether a background sequence may have a lease, or has one."""
        return self.leased is not None or self._saved >= LEAST

    def lease(self, sequence: Sequence) -> None:
        """Gives a background sequence the lease; that of another one must have ended."""
        if self.leased is not sequence:
            self.leased, self._begun_with = sequence, len(sequence.tokens)

    def lease_first(self, running: Many[Sequence]) -> bool:
        """Gives the first background sequence that runs the lease, if one is due; returns if one has it."""
        if self.is_due and self.leased is None:
            for one in running:
                if is_background(one) and not one.fetching:
                    self.lease(one)
                    break
        return self.leased is not None

    def book_step(self, others: float, background: float) -> None:
        """Books the weighted tokens of a step while background work is there."""
        self._saved = min(MOST, self._saved + FLOOR * others - background)
        leased = self.leased
        if leased is None:
            self._saved = max(self._saved, 0.0)  # what ran in free room owes nothing
        elif leased.phase is not SequencePhase.RUNNING or (
            self._saved <= 0 and len(leased.tokens) + leased.pending > self._begun_with
        ):
            self.leased = None

    def forget(self) -> None:
        """There is no background work any more."""
        self.leased, self._saved = None, 0.0

    def end(self, sequence: Sequence) -> None:
        """Ends the lease of a sequence that has ended or was preempted."""
        if self.leased is sequence:
            self.leased = None


class FairShares:
    """The credits of both classes.

    Args:
        quantum: Weighted tokens of a round; see `Deficits`.
        slots: How many running slots a party may have.

    Attributes:
        floor: What background work gets beside others.
    """

    def __init__(self, quantum: int, slots: SlotShare) -> None:
        self.slots = slots
        self.floor = BackgroundFloor()
        self._light = set[str]()
        self._others = Deficits(float(quantum))
        self._background = Deficits(float(quantum))

    @property
    def has_several(self) -> bool:
        """Whether several parties have requests that are not background."""
        return self._others.num_present > 1

    @property
    def counts(self) -> bool:
        """Whether steps are to be charged."""
        background = self._background.num_present
        return self._others.num_present + background > 1

    def of(self, sequence: Sequence) -> Deficits:
        """Returns the credits of a sequence's class."""
        return self._background if is_background(sequence) else self._others

    def is_light(self, sequence: Sequence) -> bool:
        """Whether a sequence goes before others since its party asks for less than its share."""
        return sequence.party in self._light and not is_background(sequence)

    def find_light(
        self,
        running: Many[Sequence],
        waiting: Mapping[str, list[Sequence]],
        find: Callable[[Sequence], int],
    ) -> None:
        """Finds out which parties are light; see `Deficits`.

        Args:
            waiting: Each party's sequences, in order.
            find: Returns how many tokens of a sequence the cache has, about.
        """
        self._light.clear()
        if not self.has_several:
            return
        spare: dict[str, float] = {}
        for one in running:
            if not is_background(one):
                left = spare.get(one.party)
                left = self._others.spare(one.party) if left is None else left
                spare[one.party] = left - (one.remaining if one.remaining > 1 else 0)
        for party, queue in waiting.items():
            for one in queue:
                if is_background(one):
                    break
                left = spare.get(party)
                left = self._others.spare(party) if left is None else left
                spare[party] = left
                if left <= 0:
                    break
                spare[party] = left - max(1, one.remaining - find(one))
        for party, left in spare.items():
            if left > 0:
                self._light.add(party)

    def enter(self, sequence: Sequence) -> None:
        """Counts a sequence that has come."""
        self.of(sequence).enter(sequence.party, sequence.weight)

    def leave(self, sequence: Sequence) -> None:
        """Counts a sequence that has ended."""
        self.of(sequence).leave(sequence.party)
        self.floor.end(sequence)
        if not self.has_several:
            self._light.clear()
        if not self._background.num_present:
            self.floor.forget()

    def charge_step(
        self,
        planned: Many[PlannedChunk],
        decode_tokens: float,
        waiting: Mapping[str, list[Sequence]],
        running: Many[Sequence],
    ) -> None:
        """Charges the chunks of a step, and begins a round if no party that wants more has credit.

        Args:
            planned: The chunks.
            decode_tokens: What a decoded token costs.
            waiting: The sequences of each party that wait, in order: background work comes last.
            running: Sequences that run; those that have more to compute after the step want more.
        """
        others = background = 0.0
        for sequence, _, count, samples, _ in planned:
            # a chunk with drafts counts 1, and computes one token for each that it may bring
            cost = float(count) if count > 1 else decode_tokens + max(0, samples - 1)
            if is_background(sequence):
                self._background.charge(sequence.party, cost)
                background += cost
            else:
                self._others.charge(sequence.party, cost)
                others += cost
        if self._background.num_present:
            self.floor.book_step(others, background)
        if self._others.num_present > 1:
            wanting = {one.party for one in running if one.remaining > 1 and not is_background(one)}
            wanting.update([party for party, queue in waiting.items() if not is_background(queue[0])])
            self._others.refill(wanting)
        if self._background.num_present > 1:
            wanting = {one.party for one in running if one.remaining > 1 and is_background(one)}
            wanting.update([party for party, queue in waiting.items() if is_background(queue[-1])])
            self._background.refill(wanting)

    def shares(self) -> list[float]:
        """Returns the part of each party in what was charged to those that are there, the largest first."""
        charged = self._others.shares()
        total = sum(charged)
        return [one / total for one in charged] if total else []

    def check_invariants(self, sequences: Many[Sequence]) -> None:
        """Raises `AssertionError` unless the counts are those of these sequences."""
        for deficits, chosen in ((self._others, False), (self._background, True)):
            deficits.check_invariants([one.party for one in sequences if is_background(one) == chosen])
        leased = self.floor.leased
        if leased is not None and not (is_background(leased) and leased in sequences):
            raise AssertionError("the lease of background work is with a sequence that is not there")
