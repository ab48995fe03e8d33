"""Draft tokens for the sequences of one scheduler: which get some, how many, and what came of it.

A draft is accepted if it equals the token that is sampled in its place, so drafts change no output. A
sequence with drafts in flight, or with drafts to be expected, is planned when its tokens are known.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.draft_budget import DraftBudget
from services.worker.domain.speculation.prompt_lookup import PromptLookup
from services.worker.domain.speculation.step_costs import StepCosts
from services.worker.rank_protocol.plan import StepResult

MAX_SEQUENCES = 8  # beside more running sequences none is drafted: their rows use the multipliers already


class DraftCounts(NamedTuple):
    """What came of drafts.

    Attributes:
        drafts: Chunks with draft tokens.
        draft_tokens: Draft tokens that were checked.
        accepted_tokens: Those of them that were right.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(slots=True)
class _Drafter:
    """What is kept of one sequence.

    Attributes:
        budget: Its credit.
        lookup: Its index.
        known: Length of the sequence for which `drafts` were looked up.
        drafts: What may follow.
    """

    budget: DraftBudget
    lookup: PromptLookup = field(default_factory=PromptLookup)
    known: int = 0
    drafts: list[int] = field(default_factory=list)


class Speculation:
    """Drafts of all running sequences.

    Args:
        most: Drafts of a sequence in one step; 0: there are none.

    Attributes:
        most: As given.
        num_drafted: Draft tokens so far.
        num_accepted: Those of them that were right.
        num_steps: Chunks with drafts so far.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._costs = StepCosts(MAX_SEQUENCES)
        self._drafters: dict[int, _Drafter] = {}  # by seq_id
        self.in_flight: set[int] = set()  # seq_ids with drafts in flight
        self.num_drafted = self.num_accepted = self.num_steps = 0
        self._told = DraftCounts(0, 0, 0)

    def take_counts(self) -> DraftCounts:
        """Returns what came of drafts since the last call."""
        now, told = DraftCounts(self.num_steps, self.num_drafted, self.num_accepted), self._told
        self._told = now
        return DraftCounts(*(new - old for new, old in zip(now, told, strict=True)))

    def begin_step(self, running: list[Sequence], on_trial: int) -> bool:
        """Forgets sequences that left; returns whether the next step may have drafts, or some are in flight.

        Args:
            running: All running sequences.
            on_trial: How many of them are computed in steps of their own; beside them there are no drafts.
        """
        if not self.most:
            return False
        if len(self._drafters) > 2 * len(running) + MAX_SEQUENCES:
            here = {one.seq_id for one in running}
            self._drafters = {key: one for key, one in self._drafters.items() if key in here}
        return bool(self.in_flight) or (len(running) <= MAX_SEQUENCES and not on_trial)

    def waits(self, running: list[Sequence]) -> bool:
        """Whether a sequence has drafts in flight or waits for its token to be drafted: none runs ahead."""
        if self.in_flight:
            return True
        if not self.most or len(running) > MAX_SEQUENCES:
            return False
        return any(one.pending and self.drafts_of(one, len(running)) for one in running)

    def drafts_of(self, sequence: Sequence, num_running: int) -> list[int]:
        """Returns what may follow the newest known token of a sequence that decodes.

        Empty if nothing is found, if its drafts have cost more than they saved, and if a grammar limits its
        tokens.
        """
        if sequence.constraint is not None or sequence.embedding is not None or sequence.prompt_only:
            return []
        drafter = self._drafters.get(sequence.seq_id)
        if drafter is None:
            drafter = self._drafters[sequence.seq_id] = _Drafter(DraftBudget(self.most))
        known = len(sequence.tokens)
        if drafter.known != known:
            room = sequence.max_tokens - sequence.num_output - 1
            count = min(room, drafter.budget.allowed(self._costs.price(num_running)))
            drafter.known, drafter.drafts = known, drafter.lookup.propose(sequence.tokens, count)
        return drafter.drafts

    def book_step(
        self, sequences: int, result: StepResult, drafted: list[tuple[int, int, int]], *, alone: bool
    ) -> None:
        """Books a step with drafts, or one that only decoded.

        Args:
            sequences: In the step.
            result: Of the step.
            drafted: For each sequence with drafts its seq_id, how many there were, and how many were right.
            alone: There was nothing else in the step, so that its time can be compared.
        """
        if not drafted:
            if alone:
                self._costs.book_plain(sequences, result.compute_s)
            return
        total = sum(count for _, count, _ in drafted)
        if alone:
            extra = self._costs.book_drafts(sequences, total, result.compute_s, result.wait_s)
        else:
            extra = total * self._costs.price(sequences)
        for seq_id, count, right in drafted:
            self.num_steps += 1
            self.num_drafted += count
            self.num_accepted += right
            drafter = self._drafters.get(seq_id)
            if drafter is not None:
                drafter.budget.book_drafts(count, right, right / sequences - extra * count / total)

    def book_plain(self, seq_id: int) -> None:
        """Books a token of a sequence that came without drafts."""
        drafter = self._drafters.get(seq_id)
        if drafter is not None:
            drafter.budget.book_plain()
