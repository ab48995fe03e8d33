"""Draft tokens for the sequences of one scheduler: which get some, how many, and what came of it.

A draft is accepted if it equals the token that is sampled in its place, so drafts change no output. A
sequence with drafts in flight, or with drafts to be expected, is planned when its tokens are known.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.draft_budget import DraftBudget
from services.worker.domain.speculation.draft_sequences import Wish
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
        known: Length of the sequence for which `drafts` were looked up, or guessed by the draft model.
        drafts: What may follow.
        by_model: The draft model has guessed them.
        model_from: Length of the sequence before which the draft model is not asked.
    """

    budget: DraftBudget
    lookup: PromptLookup = field(default_factory=PromptLookup)
    known: int = 0
    drafts: list[int] = field(default_factory=list)
    by_model: bool = False
    model_from: int = 0


class Speculation:
    """Drafts of all running sequences.

    Args:
        most: Drafts of a sequence in one step; 0: there are none.

    Attributes:
        most: As given.
        num_drafted: Draft tokens so far.
        num_accepted: Those of them that were right.
        num_steps: Chunks with drafts so far.
        has_model: A draft model is there, which may guess where nothing is found in the text.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.has_model = False
        self._round_s = 0.0  # what the draft model's guesses for the next step took
        self._saved_s = 0.0  # by guesses of the draft model
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
        for one in running:
            if one.pending and (
                self.drafts_of(one, len(running)) or (self.has_model and self._model_count(one, len(running)))
            ):
                return True
        return False

    def wishes(self, running: list[Sequence]) -> list[Wish]:
        """Returns the sequences that the draft model may guess for before the next step is planned."""
        if not (self.most and self.has_model) or self.in_flight or len(running) > MAX_SEQUENCES:
            return []
        found = list[Wish]()
        for one in running:
            decodes = one.remaining == 1 and one.announced and not (one.pending or one.fetching)
            if decodes and not self.drafts_of(one, len(running)):
                count = self._model_count(one, len(running))
                if count:
                    found.append(Wish(one, count))
        return found

    def offer(self, guesses: list[tuple[Sequence, list[int]]], num_running: int, seconds: float) -> None:
        """Takes guesses of the draft model, of one at least, that took so many seconds together."""
        total = sum(len(drafts) for _, drafts in guesses)
        self._costs.book_model(total, seconds)
        self._round_s = seconds
        for sequence, drafts in guesses:
            drafter = self._drafters.get(sequence.seq_id)
            if drafter is not None:
                share = seconds * len(drafts) / total
                drafter.budget.charge(self._costs.in_steps(num_running, share))
                drafter.known, drafter.drafts, drafter.by_model = len(sequence.tokens), drafts, True

    def postpone(self, sequence: Sequence, tokens: int) -> None:
        """Does not ask the draft model for a sequence until it has so many more tokens."""
        drafter = self._drafters.get(sequence.seq_id)
        if drafter is not None:
            drafter.model_from = len(sequence.tokens) + tokens

    def take_saved_s(self) -> float:
        """Returns the seconds that guesses of the draft model have saved since the last call."""
        saved, self._saved_s = self._saved_s, 0.0
        return saved

    def _model_count(self, sequence: Sequence, num_running: int) -> int:
        """How many tokens the draft model may guess for a sequence; 0 if it has cost more than it saved."""
        drafter = self._drafters.get(sequence.seq_id)
        known = len(sequence.tokens) + sequence.pending
        if drafter is None or sequence.constraint is not None or known < drafter.model_from:
            return 0
        room = sequence.max_tokens - sequence.num_output - sequence.pending - 1
        return max(0, min(room, drafter.budget.allowed(self._costs.model_price(num_running))))

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
            drafter.by_model = False
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
        wait_s, self._round_s = max(0.0, result.wait_s - self._round_s), 0.0  # which was paid already
        if alone:
            extra = self._costs.book_drafts(sequences, total, result.compute_s, wait_s)
        else:
            extra = total * self._costs.price(sequences)
        for seq_id, count, right in drafted:
            self.num_steps += 1
            self.num_drafted += count
            self.num_accepted += right
            drafter = self._drafters.get(seq_id)
            if drafter is not None:
                gain = right / sequences - extra * count / total
                drafter.budget.book_drafts(count, right, gain)
                if drafter.by_model:
                    self._saved_s += self._costs.in_seconds(sequences, gain)

    def book_plain(self, seq_id: int) -> None:
        """Books a token of a sequence that came without drafts."""
        drafter = self._drafters.get(seq_id)
        if drafter is not None:
            drafter.budget.book_plain()
