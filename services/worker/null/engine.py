"""An engine without weights: one token per sequence and step, always the same at a position.

Keeps the state of the engine and the times of steps; what a step computes, and the checks of its plan, are in
`null/sequences.py`. A plan that is wrong ends the engine with `EngineFailed`.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from mypy_extensions import mypyc_attr

from services.worker.null.prompts import HIDDEN_SIZE
from services.worker.null.sequences import NullSequences
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING, EngineInfo, RankInfo
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreResult
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.prompt_parts import PromptPart
from services.worker.rank_protocol.step_masks import StepMasks
from services.worker.rank_protocol.step_times import NO_PARTS, StepTimes, private_times

TEXT = "The quick brown fox jumps over the lazy dog. "


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have some
class NullEngine:
    """See the module.

    Args:
        tokens: The answer, repeated: position p gets tokens[p % len(tokens)]; with an adapter, a later one.
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
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._step_delay_s = step_delay_s
        self._sequences = NullSequences(tokens, num_blocks, vocab_size)
        self._times, (self._recorded,) = private_times(1)
        self._outstanding: deque[asyncio.Future[StepResult]] = deque()
        self._computed: dict[asyncio.Future[StepResult], StepResult] = {}  # behind one whose time is not over
        # submitted and not computed: the first one waits for its masks
        self._unmasked: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()
        self._free_at = 0.0  # when the last step submitted is done, on the event loop's clock
        self._steps = 0
        self._state = "stopped"

    async def start(self) -> EngineInfo:
        """Return the description of an engine that is ready."""
        self.reset()
        return EngineInfo(
            num_blocks=self._num_blocks,
            vocab_size=self._vocab_size,
            context_length=self._context_length,
            fingerprint="null",
            run_ahead=1 if self._step_delay_s else 0,
            hidden_size=HIDDEN_SIZE,
            adapters=True,
            ranks=[RankInfo(rank=0, pid=os.getpid(), load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)],
        )

    def reset(self) -> None:
        """Drop all sequences and clear a failure."""
        self._sequences.reset()
        self._steps = 0
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

    def hurry(self) -> None:
        """Do nothing: a step brings all its tokens."""

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
            sampled = self._sequences.compute_step(plan, masks, prompts)
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

    async def load_adapter(self, order: LoadAdapter) -> AdapterLoaded:
        """Fill a slot, of whose files only the existence is checked."""
        if self._state != "ready":
            raise EngineFailed(f"the null engine is {self._state}, it cannot load an adapter")
        try:
            return await self._sequences.adapters.load_adapter(order)
        except EngineFailed as error:
            self._end(f"broken: {error}")
            raise

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
        return self._sequences.blocks.num_held

    def _end(self, state: str) -> None:
        self._state = state
        for future in self._outstanding:
            if not future.done():
                future.set_exception(EngineFailed(f"the null engine is {state}"))
                future.exception()  # retrieved, so that asyncio does not warn
        self._outstanding.clear()
        self._computed.clear()
        self._unmasked.clear()
        self._sequences.adapters.fail(f"the null engine is {state}")

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
