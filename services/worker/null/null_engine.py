"""An engine without weights: one token per sequence and step, always the same at a position.

A token that a mask or `min_tokens` forbids gives way to another one, chosen by the position as well. All
that ranks rely on in a plan is checked: contiguous positions, blocks that exist and are released, and blocks
shared only if they hold the tokens of both sequences. A violation is an `EngineFailed`.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from mypy_extensions import mypyc_attr

from services.worker.null.null_blocks import NullBlocks, NullSequence
from services.worker.null.null_prompts import HIDDEN_SIZE, prompt_parts
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from services.worker.rank_protocol.plan import (
    MAX_OUTSTANDING,
    Alternative,
    EngineFailed,
    EngineInfo,
    NewSequence,
    RankInfo,
    Sampled,
    ScheduledChunk,
    StepPlan,
    StepResult,
)
from services.worker.rank_protocol.prompt_parts import PromptPart
from services.worker.rank_protocol.step_masks import ANY_TOKEN, StepMasks
from services.worker.rank_protocol.step_times import NO_PARTS, StepTimes, private_times

TEXT = "The quick brown fox jumps over the lazy dog. "


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have some
class NullEngine:
    """See the module.

    Args:
        tokens: The answer, repeated: position p gets tokens[p % len(tokens)].
        num_blocks: Size of the KV cache, in blocks.
        vocab_size: Number of token ids.
        context_length: Longest sequence, in tokens.
        step_delay_s: Duration of a step; 0: the result is there when `submit` returns.
    """

    def __init__(
        self,
        *,
        tokens: list[int],
        num_blocks: int,
        vocab_size: int,
        context_length: int,
        step_delay_s: float,
    ) -> None:
        self._tokens = tokens
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._step_delay_s = step_delay_s
        self._known: dict[int, NullSequence] = {}
        self._blocks = NullBlocks(num_blocks)
        self._times, (self._recorded,) = private_times(1)
        self._outstanding: deque[asyncio.Future[StepResult]] = deque()
        self._computed: dict[asyncio.Future[StepResult], StepResult] = {}  # behind one whose time is not over
        # submitted and not computed: the first one waits for its masks
        self._unmasked: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()
        self._free_at = 0.0  # when the last step submitted is done, on the event loop's clock
        self._steps = 0
        self._state = "stopped"

    async def start(self) -> EngineInfo:
        """Be ready at once."""
        self.reset()
        return EngineInfo(
            num_blocks=self._num_blocks,
            vocab_size=self._vocab_size,
            context_length=self._context_length,
            fingerprint="null",
            run_ahead=1 if self._step_delay_s else 0,
            hidden_size=HIDDEN_SIZE,
            ranks=[RankInfo(rank=0, pid=os.getpid(), load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)],
        )

    def reset(self) -> None:
        """Drop all sequences and be ready."""
        self._known, self._blocks, self._steps = {}, NullBlocks(self._num_blocks), 0
        self._times, (self._recorded,) = private_times(1)
        self._state, self._free_at = "ready", 0.0

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Check the plan and answer it, after the delay; a wrong plan ends the engine."""
        loop = asyncio.get_running_loop()
        if len(self._outstanding) >= MAX_OUTSTANDING:
            raise RuntimeError(f"step {plan.step_id} was submitted before {MAX_OUTSTANDING} others were done")
        future: asyncio.Future[StepResult] = loop.create_future()
        self._check_ready(plan)
        if self._unmasked or True in [piece.masked for piece in plan.chunks]:
            self._outstanding.append(future)
            self._unmasked.append((plan, future))
            return future
        result = self.compute(plan)
        if not self._step_delay_s:
            future.set_result(result)
            return future
        self._outstanding.append(future)
        self._deliver_later(future, result)
        return future

    def supply_masks(self, masks: StepMasks) -> None:
        """Compute the step that waits for these masks, and those behind it that need none."""
        given: list[bytes] | None = masks.masks
        while self._unmasked:
            plan, future = self._unmasked[0]
            if given is None and any(piece.masked for piece in plan.chunks):
                return
            if given is not None and plan.step_id != masks.step_id:
                self._end(f"broken: masks of step {masks.step_id} came for step {plan.step_id}")
                return
            self._unmasked.popleft()
            try:
                result = self.compute(plan, given or [])
            except EngineFailed:
                return  # all that wait for it have the reason
            given = None
            self._deliver_later(future, result)

    def compute(self, plan: StepPlan, masks: Sequence[bytes] = ()) -> StepResult:
        """Compute one step at once; raises `EngineFailed` for a wrong plan."""
        self._check_ready(plan)
        began_ns = time.monotonic_ns()
        try:
            prompts: list[PromptPart] = []
            sampled = self._compute(plan, masks, prompts)
        except EngineFailed as error:
            self._end(f"broken: {error}")
            raise
        self._steps += 1
        ended_ns = time.monotonic_ns()
        self._recorded.write_step(plan.step_id, began_ns, ended_ns, NO_PARTS, 0)
        self._recorded.count_step(began_ns, ended_ns, NO_PARTS, 0)
        return StepResult(step_id=plan.step_id, sampled=sampled, prompts=prompts)

    async def fetch_blocks(self, order: FetchBlocks) -> FetchResult:
        """Find nothing, since there is no store."""
        return FetchResult(fetch_id=order.fetch_id, count=0, missing=True)

    def watch_store(self, on_stored: Callable[[StoreResult], None]) -> None:
        """Do nothing: no block is stored."""

    def watch_failures(self, on_failure: Callable[[], None]) -> None:
        """Do nothing: it has no ranks that could die between steps."""

    def status(self) -> list[dict[str, object]]:
        """Return one row, for this process."""
        return [{"rank": 0, "pid": os.getpid(), "state": self._state, "steps": self._steps, "engine": "null"}]

    def step_times(self) -> StepTimes | None:
        """Return the times at which this process computed steps, without the delay."""
        return self._times

    async def stop(self) -> None:
        """Fail the steps that are not done."""
        self._end("stopped")

    @property
    def held_blocks(self) -> int:
        """Number of blocks that are not released, for tests."""
        return self._blocks.num_held

    def _end(self, state: str) -> None:
        self._state = state
        for future in self._outstanding:
            if not future.done():
                future.set_exception(EngineFailed(f"the null engine is {state}"))
                future.exception()  # retrieved, so that asyncio does not warn
        self._outstanding.clear()
        self._computed.clear()
        self._unmasked.clear()

    def _check_ready(self, plan: StepPlan) -> None:
        if self._state != "ready":
            raise EngineFailed(f"the null engine is {self._state}, it cannot run step {plan.step_id}")

    def _deliver_later(self, future: asyncio.Future[StepResult], result: StepResult) -> None:
        loop = future.get_loop()
        self._free_at = max(self._free_at, loop.time()) + self._step_delay_s
        if self._step_delay_s:
            loop.call_at(self._free_at, self._deliver, future, result)
        else:
            self._deliver(future, result)

    def _deliver(self, future: asyncio.Future[StepResult], result: StepResult) -> None:
        """Give a step its result, after those before it: timers that are due together may be swapped."""
        if future not in self._outstanding:  # of an earlier start, or without a delay
            if not future.done():
                future.set_result(result)
            return
        self._computed[future] = result
        while self._outstanding and self._outstanding[0] in self._computed:
            first = self._outstanding.popleft()
            computed = self._computed.pop(first)
            if not first.done():
                first.set_result(computed)

    def _compute(self, plan: StepPlan, masks: Sequence[bytes], prompts: list[PromptPart]) -> list[Sampled]:
        self._begin(plan, len(masks))
        tokens, cycle, sampled, next_mask = self._tokens, len(self._tokens), [], iter(masks)
        blocks = self._blocks
        for piece in plan.chunks:
            found = self._known.get(piece.seq_id)
            if found is not None and found.plain and blocks.write_next(found, piece):  # nearly all
                token_id = tokens[found.computed % cycle]
                found.tokens.append(token_id)
                sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id))
                continue
            known = self._extend(piece)
            if known.new is not None:
                prompts += prompt_parts(known.new, piece.start, known.computed)
            if piece.drafts:
                sampled += self._check_drafts(piece, known)
                continue
            if piece.sample:
                if known.computed != len(known.tokens):
                    raise EngineFailed(f"sequence {piece.seq_id} is sampled in the middle of its tokens")
                token_id = tokens[known.computed % cycle]
                known.masked = piece.masked
                if piece.masked or known.early_ends:
                    mask = next(next_mask) if piece.masked else ANY_TOKEN
                    token_id = known.choose(token_id, mask, self._vocab_size)
                    if token_id < 0:
                        known.tokens.append(0)
                        sampled.append(
                            Sampled(
                                seq_id=piece.seq_id, token_id=0, error="no token may come", cause="demand"
                            )
                        )
                        continue
                known.tokens.append(token_id)
                if known.logprobs < 0:
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id))
                else:
                    top = [Alternative(token_id, 0.0)] if known.logprobs else []
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id, logprob=0.0, top=top))
        return sampled

    def _begin(self, plan: StepPlan, num_masks: int) -> None:
        """Forgets and takes in sequences."""
        for seq_id in plan.release:
            self._release(seq_id)
        for new in plan.admit:
            self._admit(new)
        if num_masks != sum([piece.masked for piece in plan.chunks]):
            raise EngineFailed(f"step {plan.step_id} came with {num_masks} masks")

    def _release(self, seq_id: int) -> None:
        known = self._known.pop(seq_id, None)
        if known is None:
            raise EngineFailed(f"the plan releases sequence {seq_id}, which is not there")
        self._blocks.release_blocks(known)

    def _check_drafts(self, piece: ScheduledChunk, known: NullSequence) -> list[Sampled]:
        """Samples between the drafts of a chunk, up to the first that differs; the others are forgotten."""
        first = piece.start + piece.num_tokens - piece.drafts
        drafts = known.tokens[first:]
        del known.tokens[first:]
        sampled: list[Sampled] = []
        for index in range(piece.drafts + 1):
            token_id = self._tokens[(first + index) % len(self._tokens)]
            if known.early_ends:
                token_id = known.choose(token_id, ANY_TOKEN, self._vocab_size)
            top = [Alternative(token_id, 0.0)] if known.logprobs > 0 else []
            sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id, top=top))
            known.tokens.append(token_id)
            if drafts[index : index + 1] != [token_id]:
                self._blocks.forget_tokens(known, first + index)
                break
        return sampled

    def _admit(self, new: NewSequence) -> None:
        if new.seq_id in self._known:
            raise EngineFailed(f"the plan admits sequence {new.seq_id} a second time")
        if not 0 < new.prompt_len <= len(new.token_ids):
            raise EngineFailed(f"sequence {new.seq_id} has a prompt of {new.prompt_len} tokens")
        self._known[new.seq_id] = NullSequence(new)

    def _extend(self, piece: ScheduledChunk) -> NullSequence:
        known = self._known.get(piece.seq_id)
        if known is None:
            raise EngineFailed(f"the plan computes sequence {piece.seq_id}, which was not admitted")
        start, token_ids, follow = piece.start, piece.token_ids, piece.follow
        count = len(token_ids) or int(follow)
        if piece.new_blocks:
            self._blocks.append_blocks(known, piece.new_blocks, start)
        if start != known.computed or not count or (follow and token_ids):
            raise EngineFailed(
                f"sequence {piece.seq_id} is computed up to {known.computed}, "
                f"the plan goes on at {start} with {count} tokens"
            )
        if (known.masked or piece.drafts) and not follow:
            known.tokens += token_ids[len(known.tokens) - start :]  # forced by its grammar
        if start + count > len(known.tokens):
            raise EngineFailed(
                f"sequence {piece.seq_id} has {len(known.tokens)} tokens, nothing follows them yet"
            )
        if not follow and known.tokens[start : start + count] != token_ids:
            raise EngineFailed(f"the plan has other tokens at {start} than sequence {piece.seq_id} has")
        self._blocks.write_tokens(known, count)
        return known
