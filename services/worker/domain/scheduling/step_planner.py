"""Plans the chunks of a step: decodes first, then prompts and forced runs with the rest of the token budget.

Sequences on trial (`crash_trials.py`) get steps of their own.
"""

from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.scheduling.admission import SequenceAdmission
from services.worker.domain.scheduling.background import (
    MIN_CHUNK,
    UNLIMITED,
    BackgroundPace,
    has_background,
    held_back,
    is_background,
    only_background,
    others_begin,
)
from services.worker.domain.scheduling.crash_trials import CrashTrials
from services.worker.domain.scheduling.fairness.fair_shares import FairShares
from services.worker.domain.scheduling.fairness.light_prompts import LightPrompts, PartiesSeen
from services.worker.domain.scheduling.preemption import Preemption
from services.worker.domain.scheduling.prompt_budget.prefill_shares import (
    share_among_parties,
    share_among_runs,
    share_budget,
    shared_context,
    split_runs,
)
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import PrefillThrottle
from services.worker.domain.scheduling.prompt_budget.step_costs import StepWork
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.domain.scheduling.step_draft import StepDraft
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import ScheduledChunk


class StepPlanner:
    """Drafts steps.

    Args:
        running: The running sequences, in order.
        preemption: Takes blocks from sequences when they run short.
        trials: Sequences on trial.
        fair: The credits of parties.
        sliding: Blocks of the layers with a sliding window; None if they have no pool of their own.
        speculation: Gives drafts of the next tokens; None without speculation.
    """

    def __init__(
        self,
        running: list[Sequence],
        limits: SchedulerLimits,
        admission: SequenceAdmission,
        preemption: Preemption,
        *,
        throttle: PrefillThrottle,
        trials: CrashTrials,
        pace: BackgroundPace,
        fair: FairShares,
        sliding: SlidingBlocks | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._running = running
        self._limits = limits
        self._admission = admission
        self._preemption = preemption
        self._throttle = throttle
        self._trials = trials
        self._pace = pace
        self._fair = fair
        self._sliding = sliding
        self._speculation = speculation or Speculation(0)
        self._light = LightPrompts(fair, admission, limits.token_budget)
        self._parties = PartiesSeen()

    def draft_step(self, now: float) -> StepDraft:
        """Returns the chunks of the next step; `now`: monotonic seconds."""
        if not only_background(self._running):
            self._pace.see_others(now)
        draft = StepDraft(self._sliding)
        self._fair.slots.see(several=self._fair.has_several, now=now)
        if self._fair.has_several:
            self._admission.find_light()
        if self._admission.waiting:
            self._preemption.make_room()
        if not self._trials.sequences:
            self._plan_mixed(draft, now)
            if self._light.went_alone and not draft.chunks:  # the prompt that went alone was preempted
                self._plan_mixed(draft, now)
        else:
            self._plan_by_tenant(draft, now)
        return draft

    def _plan_mixed(self, draft: StepDraft, now: float) -> None:
        """Plans all sequences that may be computed together; those on trial may not."""
        most = self._most_background(now)
        alone = self._light.take_next(self._running)
        prefilling, num_drafts = self._plan_decodes(draft, most, stand_still=bool(alone))
        if not prefilling and not self._admission.waiting:
            return  # as in nearly all steps
        whole = self._limits.token_budget - len(draft.chunks) - num_drafts
        decodes = StepWork.of_chunks(draft.planned)
        if alone:
            prefilling = [sequence for sequence in prefilling if self._fair.is_light(sequence)]
        runs, prefilling = split_runs(prefilling)
        rest = most = self._throttle.prompt_budget(whole, decodes, shared_context(prefilling))
        if not alone:
            self._admission.admit(prefilling, rest)
        if self._trials.sequences:
            prefilling = [sequence for sequence in prefilling if not self._trials.is_on(sequence)]
        if prefilling and is_background(prefilling[-1]):
            if is_background(prefilling[0]):  # a request may come during the step
                rest = self._pace.prompt_tokens(now, self._throttle.prompt_budget(rest, _one_more(decodes)))
            else:
                rest -= self._plan_leased(draft, prefilling, rest)
                prefilling = [sequence for sequence in prefilling if not is_background(sequence)]
        if self._parties.see(self._running, now):
            prefilling, rest = self._spare_others(draft, prefilling, runs, rest)
        of_runs = share_among_runs(runs, rest // 2 if prefilling else rest)
        rest -= sum(count for _, count in of_runs)
        several, rank = self._fair.has_several, self._light.rank
        shares = share_among_parties(prefilling, rest, rank) if several else share_budget(prefilling, rest)
        for sequence, count in (*of_runs, *shares):
            draft.add_chunk(sequence, self._preemption.within_blocks(sequence, count))
        if most < whole and sum(count for _, count in shares) == rest:
            self._throttle.note_cut(rest)

    def _plan_leased(self, draft: StepDraft, prefilling: list[Sequence], rest: int) -> int:
        """Plans a few tokens of the background prompt that has a lease; returns how many."""
        leased = self._fair.floor.leased
        if leased is None or leased not in prefilling:
            return 0
        count = self._preemption.within_blocks(leased, min(leased.remaining, MIN_CHUNK, rest))
        if count > 0:
            draft.add_chunk(leased, count)
        return max(0, count)

    def is_shared(self, now: float) -> bool:
        """Returns whether several parties used the engine in a step with prompts a moment ago."""
        return self._parties.were_several(now)

    def _spare_others(
        self, draft: StepDraft, prefilling: list[Sequence], runs: list[Sequence], rest: int
    ) -> tuple[list[Sequence], int]:
        """Keeps a step with prompts short for other parties; plans prompts that lack their last token only.

        Returns:
            The other prompts, and how many of `rest` tokens they get with the runs.
        """
        last = [sequence for sequence in prefilling if sequence.remaining == 1][: max(0, rest)]
        for sequence in last:
            draft.add_chunk(sequence, 1)
        left = [sequence for sequence in prefilling if sequence not in last]
        decoding = {sequence.party for sequence, *_ in draft.planned}
        rest -= len(last)
        if len(decoding) != 1 or any(sequence.party not in decoding for sequence in (*left, *runs)):
            rest = self._throttle.shared_budget(rest, len(draft.planned), shared_context(left))
        return left, rest

    def _most_background(self, now: float) -> int:
        """Returns how many background sequences may decode in this step; 0 beside the prompts of others."""
        if not has_background(self._running) or self._trials.sequences:
            return UNLIMITED
        self._admission.admit([], self._limits.token_budget)  # those who wait, before anything is planned
        if only_background(self._running):
            return self._pace.rows(now, 0)
        self._pace.see_others(now)
        if others_begin(self._running):
            return int(self._fair.floor.lease_first(self._running))
        return self._pace.rows(now, sum(not is_background(one) for one in self._running))

    def _plan_by_tenant(self, draft: StepDraft, now: float) -> None:
        """Plans in alternation a step of one request on trial and one of all others."""
        if not self._trials.others_first():
            self._plan_trial(draft)
        if not draft.chunks:
            self._plan_mixed(draft, now)
        if not draft.chunks:  # the others have nothing to compute, or one on trial was admitted just now
            self._plan_trial(draft)

    def _plan_trial(self, draft: StepDraft) -> None:
        """Plans the next tokens of one request that is on trial, and nothing else."""
        prefilling = []
        for sequence in self._trials.choose(self._running):
            if sequence.phase is not SequencePhase.RUNNING:
                continue  # it was preempted by the one before
            if sequence.has_run and sequence.remaining > 1:
                self._plan_run(draft, sequence, self._limits.token_budget)
            elif sequence.remaining > 1:
                prefilling.append(sequence)
            elif sequence.planned < sequence.capacity or self._preemption.grow(sequence):
                draft.add_chunk(sequence, 1)
        rest = self._limits.token_budget - sum(chunk.num_tokens for chunk in draft.chunks)
        for sequence, count in share_budget(
            [s for s in prefilling if s.phase is SequencePhase.RUNNING], rest
        ):
            draft.add_chunk(sequence, count)

    def _plan_run(self, draft: StepDraft, sequence: Sequence, most: int) -> int:
        """Plans forced tokens of a sequence, at most so many; returns how many."""
        count = min(sequence.remaining, most)
        if sequence.planned + count > sequence.capacity and not self._preemption.grow(sequence, count):
            return 0  # it was the last one, and was preempted
        draft.add_chunk(sequence, count)
        return count

    def _plan_drafts(self, draft: StepDraft, sequence: Sequence, most: int) -> int:
        """Plans the next token of a sequence with drafts after it, or lets it wait for what is in flight.

        Args:
            most: Drafts that fit into the step.

        Returns:
            How many tokens were planned, 1 if it waits, and 0 if it is to be planned without drafts.
        """
        speculation = self._speculation
        if sequence.seq_id in speculation.in_flight:
            return 1
        pending = sequence.pending
        if (
            sequence.remaining != 1
            or not sequence.announced
            or sequence.num_output + pending >= sequence.max_tokens
        ):
            return 0
        if pending:  # drafts follow the token in flight
            return int(most > 0 and speculation.expects(sequence, len(self._running)))
        drafts = speculation.drafts_of(sequence, len(self._running))[: max(0, most)]
        if not drafts:
            return 0
        if not self._preemption.grow_freely(sequence, 1 + len(drafts)):
            return 0
        draft.add_drafted(sequence, drafts)
        speculation.in_flight.add(sequence.seq_id)
        return 1 + len(drafts)

    def _plan_decodes(
        self, draft: StepDraft, most: int, *, stand_still: bool = False
    ) -> tuple[list[Sequence], int]:
        """Plans one token of each sequence that decodes, and drafts of those after it.

        Args:
            most: How many background sequences may decode; they come last. 0: they stand still.
            stand_still: Whether only light parties decode.

        Returns:
            The sequences whose prompts or forced runs are to be computed, with a block for one token at
            least, and how many drafts were planned.
        """
        prefilling, index, running = [], 0, self._running
        spare, num_drafts = max(0, self._limits.token_budget - len(running)), 0
        held = held_back(running, most) if most < UNLIMITED else frozenset[int]()
        chunks, planned = draft.chunks, draft.planned
        trials = self._trials if self._trials.sequences else None
        drafting = self._speculation.most and self._speculation.begin_step(
            running, len(self._trials.sequences)
        )
        while index < len(running):
            sequence = running[index]
            index += 1
            if sequence.fetching or (held and id(sequence) in held) or (trials and trials.is_on(sequence)):
                continue
            if stand_still and not self._fair.is_light(sequence):
                continue
            if drafting and (count := self._plan_drafts(draft, sequence, spare - num_drafts)):
                num_drafts += count - 1
                continue
            start, pending, known = sequence.planned, sequence.pending, len(sequence.tokens)
            if known + pending - start != 1:
                if start >= sequence.capacity and not self._preemption.grow(sequence):
                    break  # a run of the last one, which was preempted
                prefilling.append(sequence)
                continue
            if (
                pending
                and known + pending - sequence.prompt_len - sequence.repeated_tokens >= sequence.max_tokens
            ):
                continue  # its last token is in flight
            if start >= sequence.capacity and not self._preemption.grow(sequence):
                break  # it was the last one, and was preempted
            at_hand = not sequence.new_blocks and start < sequence.sliding_capacity
            if at_hand and not pending and sequence.constraint is None:
                seq_id = sequence.seq_id
                chunks.append(
                    ScheduledChunk(seq_id=seq_id, start=start, token_ids=sequence.tokens[start:], sample=True)
                )
                planned.append((sequence, seq_id, 1, True, start + 1))
                sequence.planned, sequence.pending = start + 1, 1
            else:
                draft.add_chunk(sequence, 1)
        # `prefilling` is still valid: preemption takes victims from the end of `running`, for a decode
        return prefilling, num_drafts


def _one_more(decodes: StepWork) -> StepWork:
    """The decodes, or one if there are none: it may come during the step."""
    return decodes if decodes.decodes else StepWork(decodes=1)
