"""Continuous batching: which tokens of which sequences the next step computes.

One mixed batch per step under a token budget: decodes first, the rest for chunks of prefills. Memory is
given out in blocks; when it runs short, the sequence that is last in order gives up its blocks and is
computed again later. Pure: time is an argument; what happens to the tokens is decided by the caller.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from services.worker.domain.blocks import BlockManager, blocks_for
from services.worker.domain.plan import BLOCK_SIZE, NewSequence, Sampled, Slice, StepPlan, StepResult
from services.worker.domain.prefill import share_budget
from services.worker.domain.sequence import Phase, Sequence
from shared.messages import FinishReason

MIN_PREFILLS = 8  # prompts that may be in work at once, however long they are
_ORDER = attrgetter("order")


@dataclass(slots=True, frozen=True)
class Limits:
    """Bounds of a scheduler, in tokens per step and in sequences. A budget below `max_running` is refused."""

    token_budget: int
    max_running: int
    max_waiting: int

    def __post_init__(self) -> None:
        if self.token_budget < self.max_running or self.max_running < 1 or self.max_waiting < 0:
            raise ValueError(
                f"token_budget ({self.token_budget}) must be at least max_running ({self.max_running}), "
                f"which must be positive, and max_waiting ({self.max_waiting}) not negative"
            )


@dataclass(slots=True, frozen=True)
class Advance:
    """A sequence got a token; with a reason it was the last one and its blocks are free already."""

    sequence: Sequence
    sampled: Sampled
    finish_reason: FinishReason | None


class Scheduler:
    """Sequences waiting and running, both in order of priority, then arrival. Call plan, apply, plan, ..."""

    def __init__(self, blocks: BlockManager, limits: Limits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._by_id: dict[int, Sequence] = {}
        self._release: list[int] = []
        self._in_flight: list[tuple[Sequence, int, int]] = []  # sequence, its seq_id then, tokens computed
        self._last_seq_id = 0
        self._step_id = 0
        self._earliest_deadline = float("inf")  # a lower bound of all deadlines

    def has_room(self, num_sequences: int) -> bool:
        """Whether that many more may come in: waiting places and free running places together."""
        bound = self.limits.max_running + self.limits.max_waiting
        return len(self.waiting) + len(self.running) + num_sequences <= bound

    @property
    def has_work(self) -> bool:
        """Whether `plan` would give the engine something to do."""
        return bool(self.running or self.waiting or self._release)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; whether it fits at all was checked before (`has_room`, context length)."""
        if blocks_for(len(sequence.tokens) + 1) > self.blocks.num_blocks:
            raise ValueError(f"{len(sequence.tokens)} tokens never fit into {self.blocks.num_blocks} blocks")
        sequence.phase = Phase.WAITING
        insort(self.waiting, sequence, key=_ORDER)
        self._earliest_deadline = min(self._earliest_deadline, sequence.deadline)

    def end(self, sequence: Sequence) -> None:
        """Takes a sequence out, finished or cancelled, wherever it is; its blocks are free at once.

        Its seq_id is in the next plan's `release`. Calling it again, also during a step, changes nothing.
        """
        if sequence.phase is Phase.WAITING:
            self._remove(self.waiting, sequence)
        elif sequence.phase is Phase.RUNNING:
            self._leave(sequence)
        sequence.phase = Phase.ENDED

    def expire(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed, waiting or running; the caller ends them."""
        if now < self._earliest_deadline:
            return []
        late, earliest = [], float("inf")
        for sequence in self.waiting + self.running:
            if sequence.deadline <= now:
                late.append(sequence)
            else:
                earliest = min(earliest, sequence.deadline)
        self._earliest_deadline = earliest
        return late

    def plan(self) -> StepPlan:
        """The next step. Its slices are empty only if nothing waits or runs."""
        slices: list[Slice] = []
        self._in_flight = []
        prefilling = self._plan_decodes(slices)
        rest = self.limits.token_budget - len(slices)
        admitted = self._admit(prefilling, rest)
        for sequence, count in share_budget(prefilling, rest):
            self._plan_slice(slices, sequence, count)
        self._step_id += 1
        release, self._release = self._release, []
        return StepPlan(step_id=self._step_id, release=release, admit=admitted, slices=slices)

    def apply(self, result: StepResult) -> list[Advance]:
        """Books a step: one `Advance` per sampled token, in the plan's order; ended sequences get none."""
        for sequence, seq_id, count in self._in_flight:
            if sequence.seq_id == seq_id:
                sequence.computed += count
        self._in_flight = []
        advances = []
        for sampled in result.sampled:
            advanced = self._by_id.get(sampled.seq_id)
            if advanced is None:  # ended while the step ran
                continue
            reason = advanced.take(sampled.token_id)
            if reason is not None:
                self.end(advanced)
            advances.append(Advance(advanced, sampled, reason))
        return advances

    def check_invariants(self) -> None:
        """Raises `AssertionError` when queues, blocks and sequences do not agree."""
        self.blocks.check_invariants()
        for sequence in self.running:
            held = len(self.blocks.table(sequence.seq_id)) * BLOCK_SIZE
            if sequence.phase is not Phase.RUNNING or not sequence.computed <= sequence.capacity == held:
                raise AssertionError(f"sequence {sequence.seq_id} says {sequence.capacity}, its table {held}")
        if {s.seq_id for s in self.running} != set(self._by_id) or self._out_of_order():
            raise AssertionError("running sequences are not those known by id, or out of order")
        if not self.running and self.blocks.num_used:
            raise AssertionError(f"{self.blocks.num_used} blocks are in use and nothing runs")

    def _plan_decodes(self, slices: list[Slice]) -> list[Sequence]:
        """Adds a slice for each sequence that decodes; returns those that still have a prompt to compute."""
        prefilling, index, running, in_flight = [], 0, self.running, self._in_flight
        while index < len(running):
            sequence = running[index]
            start = sequence.computed
            if len(sequence.tokens) - start != 1:
                prefilling.append(sequence)
            elif start < sequence.capacity and not sequence.new_blocks:
                slices.append(
                    Slice(seq_id=sequence.seq_id, start=start, token_ids=sequence.tokens[start:], sample=True)
                )
                in_flight.append((sequence, sequence.seq_id, 1))
            else:
                if start >= sequence.capacity and not self._grow(sequence):
                    break  # it gave up its own blocks, and is the last one
                self._plan_slice(slices, sequence, 1)
            index += 1
        return [s for s in prefilling if s.phase is Phase.RUNNING]

    def _plan_slice(self, slices: list[Slice], sequence: Sequence, count: int) -> None:
        start, end = sequence.computed, sequence.computed + count
        slices.append(
            Slice(
                seq_id=sequence.seq_id,
                start=start,
                token_ids=sequence.tokens[start:end],
                new_blocks=sequence.new_blocks,
                sample=end == len(sequence.tokens),
            )
        )
        sequence.new_blocks = []
        self._in_flight.append((sequence, sequence.seq_id, count))

    def _grow(self, sequence: Sequence) -> bool:
        """One more block, at the expense of the last ones in order; False if that is the sequence itself."""
        while (added := self.blocks.append(sequence.seq_id, sequence.computed + 1)) is None:
            victim = self.running[-1]
            self._leave(victim)
            self.num_preemptions += 1
            victim.num_preemptions += 1
            victim.phase = Phase.WAITING
            insort(self.waiting, victim, key=_ORDER)
            if victim is sequence:
                return False
        sequence.capacity += BLOCK_SIZE * len(added)
        sequence.new_blocks += added
        return True

    def _admit(self, prefilling: list[Sequence], rest: int) -> list[NewSequence]:
        """Moves waiting sequences to the running ones, in order, while there are places, blocks and budget.

        A sequence gets the blocks of all its tokens at once, so that only decodes ever run short. A few
        blocks stay free for those that decode already.
        """
        admitted: list[NewSequence] = []
        demand = sum(min(s.remaining, rest // 2) for s in prefilling)
        while self.waiting and len(self.running) < self.limits.max_running:
            if demand >= rest and (len(prefilling) >= MIN_PREFILLS or rest < 1):
                break
            sequence = self.waiting[0]
            spare = min(len(self.running), self.blocks.num_blocks // 32)
            if blocks_for(len(sequence.tokens)) + spare > self.blocks.num_free:
                break
            self._last_seq_id += 1
            sequence.seq_id = seq_id = self._last_seq_id
            sequence.computed = self.blocks.allocate(seq_id, sequence.tokens)
            added = self.blocks.append(seq_id, len(sequence.tokens))
            assert added is not None  # counted above
            del self.waiting[0]
            insort(self.running, sequence, key=_ORDER)
            self._by_id[seq_id] = sequence
            sequence.phase, sequence.capacity = Phase.RUNNING, len(added) * BLOCK_SIZE
            sequence.new_blocks = added
            admitted.append(sequence.announce())
            insort(prefilling, sequence, key=_ORDER)
            demand += min(sequence.remaining, rest // 2)
        return admitted

    def _leave(self, sequence: Sequence) -> None:
        """A running sequence stops running: table closed, engine told with the next plan."""
        self._remove(self.running, sequence)
        del self._by_id[sequence.seq_id]
        self.blocks.release(sequence.seq_id)
        self._release.append(sequence.seq_id)
        sequence.computed = sequence.capacity = sequence.seq_id = 0
        sequence.new_blocks = []

    @staticmethod
    def _remove(queue: list[Sequence], sequence: Sequence) -> None:
        index = bisect_left(queue, sequence.order, key=_ORDER)
        while queue[index] is not sequence:  # the choices of a request may share an order
            index += 1
        del queue[index]

    def _out_of_order(self) -> bool:
        return any(a.order > b.order for queue in (self.running, self.waiting) for a, b in pairwise(queue))
