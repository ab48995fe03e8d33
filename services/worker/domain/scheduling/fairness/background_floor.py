"""A floor for background work: a small share of all tokens, so that it is slow but never starved.

Other requests go before it (decision 0035), so a group that always has some would never come to it. While it
waits it saves up a fiftieth of what the others are charged. Once that is worth a chunk, one background
sequence gets a lease: it is admitted before others, keeps its slot, and goes on beside their prompts, until
what was saved is used up and it has got on by a token. Pure.
"""

from collections.abc import Sequence as Many

from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase

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
