"""Prompts of parties that ask for less than their share go alone, before the decodes of others.

The others stand still for that step, and never for two in a row: their tokens come at most a step later.
Pure.

`PartiesSeen`: remembers whether several parties use the engine: steps with prompts are short then. Pure.
"""

from collections.abc import Sequence as Many

from services.worker.domain.scheduling.admission import SequenceAdmission
from services.worker.domain.scheduling.fairness.fair_shares import FairShares
from services.worker.domain.scheduling.sequence import Sequence

SEEN_S = 1.0  # how long after its last sequence another party is expected to come back


class PartiesSeen:
    """When several parties were seen last, in a step with prompts."""

    def __init__(self) -> None:
        self._seen_at = -SEEN_S

    def were_several(self, now: float) -> bool:
        """Returns whether there were several a moment ago; `now`: monotonic seconds."""
        return now - self._seen_at < SEEN_S

    def see(self, running: Many[Sequence], now: float) -> bool:
        """Looks at the sequences that run; returns whether several parties use the engine or did."""
        first = running[0].party if running else ""
        if any(sequence.party != first for sequence in running):
            self._seen_at = now
        return self.were_several(now)


class LightPrompts:
    """Finds the prompts that go alone.

    Args:
        fair: The credits of parties.
        admission: Lets sequences of light parties in.
        token_budget: Tokens of a step.

    Attributes:
        went_alone: Whether some did in the step that was planned last.
    """

    def __init__(self, fair: FairShares, admission: SequenceAdmission, token_budget: int) -> None:
        self.went_alone = False
        self._fair = fair
        self._admission = admission
        self._token_budget = token_budget

    def take_next(self, running: Many[Sequence]) -> list[Sequence]:
        """Returns the prompts that go alone in the next step; none for most steps."""
        if not self._fair.has_several or self.went_alone:
            self.went_alone = False
            return []
        if self._admission.waiting:
            prefilling = [one for one in running if one.remaining > 1 and not one.fetching]
            self._admission.admit_light(prefilling, self._token_budget)
        found = [
            one
            for one in running
            if one.remaining > 1 and not one.fetching and not one.has_run and self._fair.is_light(one)
        ]
        self.went_alone = bool(found)
        return found

    def rank(self, sequence: Sequence) -> tuple[bool, float]:
        """Returns where a prompt stands among others that share a step; the least comes first."""
        return not self._fair.is_light(sequence), -self._fair.of(sequence).credit(sequence.party)
