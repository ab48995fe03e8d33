"""One rank's part of a step: plan in, sampled tokens out (on rank 0).

Joins sequences, compute and sampler. It knows neither sockets nor processes, so a test runs several in one
process. Rank 0 broadcasts what it sampled, so the next plan need not carry it.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from services.worker.engine.rank.compute import CacheBlocks, Compute
from services.worker.engine.rank.sequences import PlanError, Sequences, SequenceState
from services.worker.engine.rank.shared_pages import Progress
from services.worker.engine.sampling.row_draws import RowDraws
from services.worker.engine.sampling.sampler import Sampler, likeliest_sampled, takes_likeliest
from services.worker.rank_protocol.plan import Sampled, ScheduledChunk, StepPlan, StepResult
from services.worker.rank_protocol.step_masks import ANY_TOKEN


class StepMoments(NamedTuple):
    """Seconds of the performance counter: when a step began, and when each of its phases ended."""

    began: float
    computed: float
    masked: float
    sampled: float
    ended: float


AwaitMasks = Callable[[int], Sequence[bytes]]  # of a step_id, see `StepMasks`; called by rank 0 only
BROADCAST_TOKENS = 255  # 4 bytes each, in one broadcast of at most 1,024 bytes


class Runner:
    """Runs plans on one rank, one at a time, in the order of the leader.

    Args:
        progress: Where it counts what is done; None for memory of its own.
        await_masks: Waits for the masks of a step that has masked chunks; None: there are no such steps.
        row_draws: Draws from the scores of rows; None: with numpy.
    """

    def __init__(
        self,
        compute: Compute,
        progress: Progress | None = None,
        await_masks: AwaitMasks | None = None,
        row_draws: RowDraws | None = None,
    ) -> None:
        self._progress = compute.progress = progress or Progress()
        self.sequences = Sequences(compute.sizes)
        self.compute = compute
        self.moments = StepMoments(0.0, 0.0, 0.0, 0.0, 0.0)
        self._sampler = Sampler(row_draws)
        self._await_masks = await_masks
        self._collectives = compute.collectives

    @property
    def blocks(self) -> CacheBlocks:
        """The contents of this rank's KV cache."""
        return self.compute.blocks

    def run_step(self, plan: StepPlan) -> StepResult:
        """Runs one step.

        Returns:
            The tokens sampled, empty on all ranks but 0, and the seconds spent.

        Raises:
            PlanError: The plan contradicts earlier ones.
            CollectiveError: Another rank is gone.
        """
        began, waited, times = time.perf_counter(), self._collectives.seconds, self.compute.times
        self._progress.begin_step()
        linears_s, attention_s = times.linears_s, times.attention_s
        states = self.sequences.apply(plan)
        sampling = [
            i for i, part in enumerate(plan.chunks) if states[i].samples(part) for _ in range(1 + part.drafts)
        ]
        rows = [states[i] for i in sampling]
        ends = _ends(plan.chunks, sampling)
        logits, sampled = self._compute(plan, states, rows, ends)
        self._progress.beat()
        masked = computed = time.perf_counter()
        if logits is not None and rows:
            masks = self._masks_of(plan, sampling)
            masked = time.perf_counter()
            sampled = self._sampler.sample(logits.numpy(), rows, ends, masks)
        chosen = time.perf_counter()
        self._progress.beat()
        tokens = self.broadcast_tokens(sampled, len(rows))
        sampled = _append_tokens(plan, states, sampled, tokens)
        if self._collectives.rank == 0:
            sampled = _with_embeddings(plan, states, sampled)
        self._progress.finish_step()
        ended = time.perf_counter()
        self.moments = StepMoments(began, computed, masked, chosen, ended)
        return StepResult(
            step_id=plan.step_id,
            sampled=sampled,
            prompts=self.compute.prompts.collect(),
            compute_s=ended - began,
            linears_s=times.linears_s - linears_s,
            attention_s=times.attention_s - attention_s,
            collectives_s=self._collectives.seconds - waited,
            sampling_s=chosen - masked,
            masks_s=masked - computed,
        )

    def _compute(
        self, plan: StepPlan, states: list[SequenceState], rows: list[SequenceState], ends: list[int]
    ) -> tuple[Tensor | None, list[Sampled]]:
        """The step's logits; or what is sampled, where that is known without a copy of them."""
        find = self.compute.likeliest
        masked = any(part.masked for part in plan.chunks)
        if find is None or not rows or masked or not all(map(takes_likeliest, rows, ends)):
            return self.compute.forward(plan.chunks, states) if plan.chunks else None, []
        tokens = find(plan.chunks, states)
        return None, [] if tokens is None else likeliest_sampled(rows, tokens.tolist())

    def compute_logits(self, plan: StepPlan) -> tuple[list[SequenceState], Tensor | None]:
        """The states of the plan's chunks, and on rank 0 the logits of the sampling ones, [rows, vocab]."""
        states = self.sequences.apply(plan)
        if not plan.chunks:
            return states, None
        return states, self.compute.forward(plan.chunks, states)

    def _masks_of(self, plan: StepPlan, sampling: Sequence[int]) -> list[bytes] | None:
        """The mask of each chunk that samples, awaited if there is one; None if no chunk is masked."""
        masked = [plan.chunks[i].masked for i in sampling]
        if True not in masked:
            return None
        if self._await_masks is None:
            raise PlanError(f"step {plan.step_id} has masked chunks, and there is nothing to wait for them")
        masks = self._await_masks(plan.step_id)
        if len(masks) != masked.count(True):
            raise PlanError(f"step {plan.step_id}: {len(masks)} masks for {masked.count(True)} chunks")
        following = iter(masks)
        return [next(following) if one else ANY_TOKEN for one in masked]

    def broadcast_tokens(self, sampled: list[Sampled], rows: int) -> list[int]:
        """Broadcasts the tokens that rank 0 sampled, one per row; returns them on every rank.

        A row with an error gets 0: the next step may be planned already, and the leader drops its result.
        """
        mine = [0 if one.error else one.token_id for one in sampled]
        tokens = array("i")
        for begin in range(0, rows, BROADCAST_TOKENS):
            part = array("i", mine[begin : begin + BROADCAST_TOKENS])
            tokens.frombytes(self._collectives.broadcast(part.tobytes()))
        return tokens.tolist()


def _ends(chunks: Sequence[ScheduledChunk], sampling: Sequence[int]) -> list[int]:
    """The index of the token that each row samples; `sampling` has the chunk of each."""
    ends, before = list[int](), -1
    for i in sampling:
        part = chunks[i]
        ends.append(ends[-1] + 1 if i == before else part.start + part.num_tokens - part.drafts)
        before = i
    return ends


def _append_tokens(
    plan: StepPlan, states: Sequence[SequenceState], sampled: list[Sampled], tokens: Sequence[int]
) -> list[Sampled]:
    """Appends the tokens of all rows to their sequences, up to the first that differs from its draft.

    Returns:
        Those of `sampled` that were appended; an error is the last one of its sequence.
    """
    row, kept = 0, list[Sampled]()
    for part, state in zip(plan.chunks, states, strict=True):
        if not state.samples(part):
            continue
        count = 1
        if part.drafts:
            count = state.settle_drafts(part, tokens[row : row + 1 + part.drafts])
        else:
            state.append_sampled(part.start + part.num_tokens, tokens[row])
        for one in sampled[row : row + count]:
            kept.append(one)
            if one.error:
                break
        row += 1 + part.drafts
    return kept


def _with_embeddings(
    plan: StepPlan, states: Sequence[SequenceState], sampled: list[Sampled]
) -> list[Sampled]:
    """Adds a token that means nothing for each prompt that ends with an embedding, in the plan's order."""
    if all(state.embedding is None for state in states):
        return sampled
    tokens = deque(sampled)
    results: list[Sampled] = []
    for part, state in zip(plan.chunks, states, strict=True):
        if part.sample and not state.samples(part):
            results.append(Sampled(seq_id=part.seq_id, token_id=0))
        while tokens and tokens[0].seq_id == part.seq_id:
            results.append(tokens.popleft())
    return results
