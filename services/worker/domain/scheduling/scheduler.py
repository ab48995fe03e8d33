"""Continuous batching: which tokens of which sequences the next step computes.

One mixed batch per step under a token budget: decodes first, the rest for chunks of prefills. A step may be
planned while the one before it runs: what that one samples is computed on without being known here. When
blocks run short, the last in order gives up its own and is computed again later. Pure: time is an argument;
what happens to the tokens is decided by the caller.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from services.worker.domain.scheduling.admission import Admission
from services.worker.domain.scheduling.block_fetches import BlockFetch
from services.worker.domain.scheduling.block_manager import BlockManager
from services.worker.domain.scheduling.block_names import UNNAMED, BlockNames
from services.worker.domain.scheduling.crash_trials import CrashTrials
from services.worker.domain.scheduling.prefill_shares import share_budget
from services.worker.domain.scheduling.prefill_throttle import PrefillThrottle
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits, SequenceQueues
from services.worker.domain.scheduling.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.write_behind import WriteBehind
from services.worker.rank_protocol.plan import (
    BLOCK_SIZE,
    NewSequence,
    Sampled,
    ScheduledChunk,
    StepPlan,
    StepResult,
)
from shared.messages import FinishReason

__all__ = ["Advance", "Scheduler", "SchedulerLimits"]

NOTHING = Sampled(seq_id=0, token_id=0)  # no sequence is called 0

# a slice in flight: the sequence, its seq_id then, how many tokens it computes, whether it brings a new one
_Part = tuple[Sequence, int, int, bool]


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    slices: list[ScheduledChunk] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    admit: list[NewSequence] = field(default_factory=list)


class Advance(NamedTuple):
    """A sequence got a token; with a reason it was the last one and its blocks are free already.

    If `sampled` has an error there is no token: the sequence cannot go on, and has left the scheduler.
    """

    sequence: Sequence
    sampled: Sampled
    finish_reason: FinishReason | None


class Scheduler:
    """Call `plan`, give the plan to the engine, and `apply` its result; results come in the order of plans.

    A plan without slices, releases and copies does nothing: it is not to be computed, and has no result.
    After a plan, what `take_fetches` gives is to be ordered; `fetched` tells that it is done.

    names: of blocks; without them nothing is shared. write_behind: what is stored, and is to be. costs: of
    fetching and of computing. clock: monotonic seconds, for `costs`.
    """

    def __init__(
        self,
        blocks: BlockManager,
        limits: SchedulerLimits,
        names: BlockNames = UNNAMED,
        *,
        write_behind: WriteBehind | None = None,
        costs: TransferCostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = blocks
        self.limits = limits
        self.queues = SequenceQueues(blocks)
        self.waiting, self.running = self.queues.waiting, self.queues.running
        self.write_behind = write_behind or WriteBehind()
        self.costs = costs or TransferCostModel(limits.token_budget)
        self.admission = Admission(
            self.queues,
            limits,
            names,
            self.write_behind,
            lambda num_blocks, ahead: self.costs.fetches(num_blocks, clock(), ahead, self.under_way),
        )
        self._names = names
        self.trials = CrashTrials()
        self._pace = PrefillThrottle(limits.step_target_s)
        self._in_flight: deque[tuple[int, list[_Part]]] = deque()  # step_id and slices, oldest first
        self._step_id = 0
        self._planned = False  # the last plan was one to compute

    @property
    def num_preemptions(self) -> int:
        """How often a sequence gave its blocks to another."""
        return self.queues.num_preemptions

    @property
    def num_free(self) -> int:
        """How many more may come in: waiting places and free running places together. It may be below 0."""
        bound = self.limits.max_running + self.limits.max_waiting
        return bound - len(self.waiting) - len(self.running)

    def has_room(self, num_sequences: int) -> bool:
        """Whether that many more may come in."""
        return num_sequences <= self.num_free

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that are to be computed; not those that are fetched, or are likely in the cache.

        Each heartbeat says it, of all that wait, so that it must not depend on how long they are.
        """
        running = sum(s.remaining for s in self.running if s.remaining > 1 and not s.fetching)
        found = self.blocks.estimate_found
        return running + sum(s.remaining - BLOCK_SIZE * found(s.block_names) for s in self.waiting)

    @property
    def has_work(self) -> bool:
        """Whether there is something to plan, now or when the steps in flight are done."""
        queues = self.queues
        some = self.running or self.waiting or queues.release or self.write_behind.has_work
        return bool(some or queues.fetches.has_new)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; whether it fits at all was checked before (`has_room`, context length)."""
        self.queues.add(sequence)
        self.trials.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Takes a sequence out, finished or cancelled, wherever it is; its blocks are free at once.

        Its seq_id is in the next plan's `release`; what steps in flight sample for it is dropped. Calling it
        again changes nothing.
        """
        self.queues.end(sequence)

    def expire(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed, waiting or running; the caller ends them."""
        return self.queues.expire(now)

    def plan(self) -> StepPlan:
        """The next step."""
        draft = _Draft()
        store = self.write_behind.take(self.blocks)  # before any block may go to somebody else
        self.admission.make_way()
        if not self.trials.sequences:
            self._plan_mixed(draft)
        else:
            self._plan_in_turns(draft)
        release, self.queues.release = self.queues.release, []
        self._planned = bool(draft.slices or release or store)
        if self._planned:
            self._step_id += 1
            self._in_flight.append((self._step_id, draft.parts))
        return StepPlan(
            step_id=self._step_id, release=release, admit=draft.admit, slices=draft.slices, store=store
        )

    def requests_in(self, step_ids: Iterable[int]) -> set[str]:
        """The requests that these steps compute, if they are in flight."""
        wanted = set(step_ids)
        return {
            sequence.request_id for step, parts in self._in_flight if step in wanted for sequence, *_ in parts
        }

    def _plan_mixed(self, draft: _Draft) -> None:
        """All that may be computed together; those on trial may not."""
        prefilling = self._plan_decodes(draft)
        num_decodes = len(draft.slices)
        rest = self._pace.chunk(self.limits.token_budget - num_decodes, num_decodes)
        self.admission.admit(prefilling, rest)
        if self.trials.sequences:
            prefilling = [sequence for sequence in prefilling if not self.trials.is_on(sequence)]
        for sequence, count in share_budget(prefilling, rest):
            self._plan_slice(draft, sequence, count)

    def _plan_in_turns(self, draft: _Draft) -> None:
        """By turns a step of one request that is on trial, and one of all others."""
        if not self.trials.others_first():
            self._plan_trial(draft)
        if not draft.slices:
            self._plan_mixed(draft)
        if not draft.slices:  # the others have nothing to compute, or one on trial was admitted just now
            self._plan_trial(draft)

    def _plan_trial(self, draft: _Draft) -> None:
        """The next tokens of one request that is on trial, and nothing else."""
        prefilling = []
        for sequence in self.trials.choose(self.running):
            if sequence.phase is not SequencePhase.RUNNING:
                continue  # it gave its blocks to the one before
            if sequence.remaining > 1:
                prefilling.append(sequence)
            elif sequence.planned < sequence.capacity or self._grow(sequence):
                self._plan_slice(draft, sequence, 1)
        rest = self.limits.token_budget - len(draft.slices)
        for sequence, count in share_budget(
            [s for s in prefilling if s.phase is SequencePhase.RUNNING], rest
        ):
            self._plan_slice(draft, sequence, count)

    @property
    def under_way(self) -> tuple[int, int]:
        """Fetches that have not come, and the blocks that they bring."""
        return len(self.queues.fetches), self.queues.fetches.num_blocks

    def take_fetches(self) -> list[BlockFetch]:
        """What has to be fetched from the store now, into blocks that no later plan names until it is done.

        Earlier ones may: steps in flight still write to blocks whose sequences left, and copies of the last
        plan are of blocks that were free for others at once. So ranks wait for the last plan, which they
        begin when all steps before it are done; where it was none to compute, the steps in flight come first.
        """
        if self._in_flight and not self._planned:
            return []
        return self.queues.fetches.take(self._step_id)

    def fetched(self, fetch_id: int, count: int) -> None:
        """A fetch is done: its first `count` blocks are there. Who waits for it computes the rest."""
        fetch = self.queues.fetched(fetch_id, count)
        if fetch is not None:
            self.write_behind.found(fetch.names[:count])
            self.write_behind.forget(fetch.names[count:])

    def give_up(self, fetch_id: int) -> None:
        """A fetch takes too long: who waits for it computes everything, in other blocks."""
        fetch = self.queues.fetches.get(fetch_id)
        if fetch is not None and fetch.sequence is not None:
            fetch.sequence.stored = -1
            self.queues.preempt(fetch.sequence)

    def apply(self, result: StepResult) -> list[Advance]:
        """Books the oldest step in flight: one `Advance` per sampled token, in the plan's order.

        Sequences that ended since get none; those that were preempted keep their token.
        """
        step_id, parts = self._in_flight.popleft()
        if result.step_id != step_id:
            raise ValueError(f"step {step_id} is the oldest without result, this is step {result.step_id}")
        sampled = iter(result.sampled)
        advances: list[Advance] = []
        num_tokens, on_trial = 0, bool(self.trials.sequences)
        for sequence, seq_id, count, samples in parts:
            num_tokens += count
            if sequence.seq_id == seq_id:
                sequence.computed += count
                if sequence.computed % BLOCK_SIZE < count:
                    self._name_blocks(sequence, count)
            if not samples:
                continue
            one = next(sampled, NOTHING)
            if one.seq_id != seq_id:
                raise ValueError(f"the result of step {step_id} has no token for sequence {seq_id}")
            if sequence.phase is SequencePhase.ENDED:
                continue
            sequence.pending -= 1
            reason: FinishReason | None = None
            if one.error:
                self.write_behind.distrust(self._names.of(sequence))
                self.queues.end(sequence, forget=True)
            else:
                reason = sequence.take(one.token_id)
                if on_trial and sequence.trial_tokens:
                    sequence.trial_tokens -= 1
                if reason is not None:
                    self.queues.end(sequence)
            advances.append(Advance(sequence, one, reason))
        if num_tokens > len(parts):
            self._pace.observe(num_tokens, result.compute_s)
            self.costs.computed(num_tokens, result.compute_s)
        return advances

    def check_invariants(self) -> None:
        """Raises `AssertionError` when queues, blocks, sequences and steps in flight do not agree."""
        self.queues.check_invariants()
        planned: dict[int, int] = {}
        pending: dict[int, int] = {}
        for _, parts in self._in_flight:
            for sequence, seq_id, count, samples in parts:
                planned[seq_id] = planned.get(seq_id, 0) + count
                pending[id(sequence)] = pending.get(id(sequence), 0) + samples
        for sequence in self.running:
            if sequence.planned - sequence.computed != planned.get(sequence.seq_id, 0):
                raise AssertionError(
                    f"sequence {sequence.seq_id} is in flight with other tokens than it says"
                )
        for sequence in self.running + self.waiting:
            if sequence.pending != pending.get(id(sequence), 0):
                raise AssertionError(f"request {sequence.request_id} waits for {sequence.pending} tokens")

    def _name_blocks(self, sequence: Sequence, count: int) -> None:
        """Names the blocks that are full with the last `count` tokens computed."""
        before, after = (sequence.computed - count) // BLOCK_SIZE, sequence.computed // BLOCK_SIZE
        names = self._names.of(sequence)[before:after]
        self.queues.computed(sequence, before, names)
        self.write_behind.add(names)

    def _plan_decodes(self, draft: _Draft) -> list[Sequence]:
        """One token of each sequence that has no more to compute; returns the others."""
        prefilling, index, running = [], 0, self.running
        slices, parts = draft.slices, draft.parts
        trials = self.trials if self.trials.sequences else None
        while index < len(running):
            sequence = running[index]
            index += 1
            if sequence.fetching or (trials is not None and trials.is_on(sequence)):
                continue
            start, pending, known = sequence.planned, sequence.pending, len(sequence.tokens)
            if known + pending - start != 1:
                prefilling.append(sequence)
                continue
            if pending and known + pending - sequence.prompt_len >= sequence.max_tokens:
                continue  # its last token is in flight
            if start >= sequence.capacity and not self._grow(sequence):
                break  # it gave up its own blocks, and was the last one
            if not sequence.new_blocks and not pending:
                seq_id = sequence.seq_id
                slices.append(
                    ScheduledChunk(seq_id=seq_id, start=start, token_ids=sequence.tokens[start:], sample=True)
                )
                parts.append((sequence, seq_id, 1, True))
                sequence.planned, sequence.pending = start + 1, 1
            else:
                self._plan_slice(draft, sequence, 1)
        return prefilling  # none of them gave way: those come last, and the one that makes them decodes

    def _plan_slice(self, draft: _Draft, sequence: Sequence, count: int) -> None:
        if not sequence.announced:
            draft.admit.append(sequence.announce())
        start, end, known = sequence.planned, sequence.planned + count, len(sequence.tokens)
        samples = end == known + sequence.pending
        draft.slices.append(
            ScheduledChunk(
                seq_id=sequence.seq_id,
                start=start,
                token_ids=sequence.tokens[start:end],
                new_blocks=sequence.new_blocks,
                sample=samples,
                follow=start >= known,
            )
        )
        draft.parts.append((sequence, sequence.seq_id, count, samples))
        sequence.planned, sequence.new_blocks = end, []
        sequence.pending += samples

    def _grow(self, sequence: Sequence) -> bool:
        """One more block, at the expense of the last ones in order; False if that is the sequence itself."""
        while (added := self.blocks.append(sequence.seq_id, sequence.planned + 1)) is None:
            # the blocks of one that waits for a fetch are not free before that is done
            victim = next(s for s in reversed(self.running) if s is sequence or not s.fetching)
            self.queues.preempt(victim)
            if victim is sequence:
                return False
        sequence.capacity += BLOCK_SIZE * len(added)
        sequence.new_blocks += added
        return True
