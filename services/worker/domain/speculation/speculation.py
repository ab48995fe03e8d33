"""Draft tokens for the sequences of one scheduler: which get some, how many, and what came of it.

A draft is accepted if it equals the token that is sampled at its position, so drafts change no output. A
sequence with drafts in flight, or with drafts to be expected, is planned when its tokens are known. Where the
text of a sequence gives none, a draft model is asked, if there is one (`ModelCosts`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.domain.speculation.draft_budget import DraftBudget, StepCosts
from services.worker.domain.speculation.model_costs import START_OF_ONE, ModelCosts
from services.worker.domain.speculation.prompt_lookup import PromptLookup
from services.worker.rank_protocol.plan import StepResult

DRAFT_TOKENS = 8  # guesses of one sequence that a step checks at most
MAX_SEQUENCES = 8  # beside more running sequences none is drafted: their rows use the multipliers already


class DraftCounts(NamedTuple):
    """What came of drafts.

    Attributes:
        drafts: Chunks with draft tokens.
        draft_tokens: Draft tokens that were checked.
        accepted_tokens: Those of them that were right.
        model_draft_tokens: Draft tokens that the draft model gave.
        model_accepted_tokens: Those of them that were right.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    model_draft_tokens: int = 0
    model_accepted_tokens: int = 0


@dataclass(slots=True)
class _Drafter:
    """What is kept of one sequence.

    Attributes:
        budget: Its credit for drafts that are looked up.
        model_budget: The same for those of the draft model.
        known: Length of the sequence for which `drafts` were looked up.
        asked: How many tokens the draft model is to guess; 0 if there is something in `drafts`.
        by_model: `drafts` are those of the draft model.
        readable: The draft model can hold the sequence.
    """

    budget: DraftBudget
    model_budget: DraftBudget
    lookup: PromptLookup = field(default_factory=PromptLookup)
    known: int = 0
    drafts: list[int] = field(default_factory=list)
    asked: int = 0
    by_model: bool = False
    readable: bool = True


class Speculation:
    """Drafts of all running sequences.

    Args:
        most: Drafts of a sequence in one step; 0: there are none.

    Attributes:
        num_drafted: Draft tokens so far.
        num_accepted: Those of them that were right.
        num_steps: Chunks with drafts so far.
        costs: What a draft adds to a step, as measured.
        model: What the guesses of the draft model cost.
        model_up: There is a draft model, and it can be asked.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.costs = StepCosts(MAX_SEQUENCES)
        self._drafters: dict[int, _Drafter] = {}  # by seq_id
        self.in_flight: set[int] = set()  # seq_ids with drafts in flight
        self.num_drafted = self.num_accepted = self.num_steps = 0
        self.model, self.model_up = ModelCosts(MAX_SEQUENCES), False
        self._by_model = self._right_by_model = 0
        self._drafting_s = 0.0  # of the draft model since the last step
        self._reported = DraftCounts()

    def take_counts(self) -> DraftCounts:
        """Returns what came of drafts since the last call."""
        counts = self.num_steps, self.num_drafted, self.num_accepted, self._by_model, self._right_by_model
        now, before = DraftCounts(*counts), self._reported
        self._reported = now
        return DraftCounts(*(new - old for new, old in zip(now, before, strict=True)))

    def begin_step(self, running: list[Sequence], on_trial: int) -> bool:
        """Forgets sequences that left; returns whether the next step may have drafts, or some are in flight.

        Args:
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
        return any(one.pending and self.expects(one, len(running)) for one in running)

    def expects(self, sequence: Sequence, num_running: int) -> bool:
        """Whether a sequence that decodes has drafts, or is to get some from the draft model."""
        if self.drafts_of(sequence, num_running):
            return True
        drafter = self._drafters.get(sequence.seq_id)
        return self.model_up and drafter is not None and drafter.asked > 0

    def drafts_of(self, sequence: Sequence, num_running: int) -> list[int]:
        """Returns what may follow the newest known token of a sequence that decodes.

        Empty if nothing is found, if its drafts have cost more than they saved, and if a grammar limits its
        tokens.
        """
        if sequence.constraint is not None or sequence.embedding is not None or sequence.prompt_only:
            return []
        drafter = self._drafters.get(sequence.seq_id)
        if drafter is None:
            budgets = DraftBudget(self.most), DraftBudget(self.most, START_OF_ONE)
            drafter = self._drafters[sequence.seq_id] = _Drafter(*budgets)
        known = len(sequence.tokens)
        if drafter.known != known:
            price = self.costs.price(num_running)
            room = sequence.max_tokens - sequence.num_output - 1
            count = min(room, drafter.budget.allowed(price))
            drafter.known, drafter.drafts = known, drafter.lookup.propose(sequence.tokens, count)
            drafter.asked, drafter.by_model = 0, False
            plain_s = self.costs.plain_s(num_running)
            if self.model_up and self.model.pays and drafter.readable and plain_s and not drafter.drafts:
                price += self.model.price(num_running, plain_s)
                drafter.asked = min(room, drafter.model_budget.allowed(price))
        return drafter.drafts

    def asked(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Returns the sequences for which the draft model is to guess, and how many tokens at most.

        Those have no tokens in flight.
        """
        if not self.model_up or len(running) > MAX_SEQUENCES:
            return []
        found = []
        for one in running:
            decodes = one.remaining == 1 and not one.pending and one.announced and not one.fetching
            if decodes and not self.drafts_of(one, len(running)):
                drafter = self._drafters.get(one.seq_id)
                if drafter is not None and drafter.asked > 0:
                    found.append((one, drafter.asked))
        return found

    def forget_model(self) -> None:
        """Asks a draft model that was started again also for sequences that the one before could not hold."""
        for drafter in self._drafters.values():
            drafter.readable = True

    def refuse_model(self, seq_id: int) -> None:
        """Does not ask the draft model for a sequence any more, since it cannot hold it."""
        drafter = self._drafters.get(seq_id)
        if drafter is not None:
            drafter.readable, drafter.asked = False, 0

    def give_guesses(self, guesses: dict[int, list[int]], num_running: int, seconds: float) -> None:
        """Takes the guesses of the draft model, by seq_id, and books the time in which they were made."""
        self._drafting_s += seconds
        total, plain_s = sum(map(len, guesses.values())), self.costs.plain_s(num_running)
        if not total or not plain_s:
            return
        self.model.book_round(num_running, total, seconds)
        for seq_id, tokens in guesses.items():
            drafter = self._drafters.get(seq_id)
            if drafter is not None and tokens:
                drafter.drafts, drafter.by_model, drafter.asked = tokens, True, 0
                cost = seconds / plain_s * len(tokens) / total
                drafter.model_budget.charge(cost)
                self.model.book_credit(-cost)

    def book_reading(self, num_running: int, seconds: float) -> None:
        """Books the time in which the draft model read texts."""
        self._drafting_s += seconds
        plain_s = self.costs.plain_s(num_running)
        if plain_s:
            self.model.book_credit(-seconds / plain_s)

    def book_step(
        self, sequences: int, result: StepResult, drafted: list[tuple[int, int, int]], *, alone: bool
    ) -> None:
        """Books a step with drafts, or one that only decoded.

        Args:
            drafted: For each sequence with drafts its seq_id, how many there were, and how many were right.
            alone: There was nothing else in the step, so that its time can be compared.
        """
        wait_s, self._drafting_s = max(0.0, result.wait_s - self._drafting_s), 0.0
        if not drafted:
            if alone:
                self.costs.book_plain(sequences, result.compute_s)
            return
        total = sum(count for _, count, _ in drafted)
        if alone:
            extra = self.costs.book_drafts(sequences, total, result.compute_s, wait_s)
        else:
            extra = total * self.costs.price(sequences)
        for seq_id, count, right in drafted:
            self.num_steps += 1
            self.num_drafted += count
            self.num_accepted += right
            drafter = self._drafters.get(seq_id)
            if drafter is None:
                continue
            gain = right / sequences - extra * count / total
            budget = drafter.model_budget if drafter.by_model else drafter.budget
            budget.book_drafts(count, right, gain)
            if drafter.by_model:
                self._by_model += count
                self._right_by_model += right
                self.model.book_credit(gain)

    def book_plain(self, seq_id: int) -> None:
        """Books a token of a sequence that came without drafts."""
        if self.model_up:
            self.model.book_plain()
        drafter = self._drafters.get(seq_id)
        if drafter is not None:
            drafter.budget.book_plain()
            drafter.model_budget.book_plain()
