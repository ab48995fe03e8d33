"""The engine loop: plan a step, submit it, give its tokens to `TokenOutput`.

While a short step runs, the next one is planned and submitted, so that ranks need not wait for the leader.
The event loop runs while this one waits for a step, and every `YIELD_NS` if steps take no time, so that work,
cancels and frames go on between steps. Where sequences generate on their own (`EngineInfo.streams`), a step
lasts until something has arrived, and is ended before that if there is something to plan. The scheduler
decides what a step computes; `EngineSupervisor` handles failures of the engine.
"""

import asyncio
import math
from collections import deque
from contextlib import suppress
from time import monotonic_ns
from typing import NamedTuple, NoReturn

import structlog

from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.adapters.loads import AdapterLoads
from services.worker.leader.context import LeaderContext
from services.worker.leader.drafting.draft_rounds import DraftRounds
from services.worker.leader.engine_state import EngineState
from services.worker.leader.engine_supervisor import EngineSupervisor
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.step_log import count_arrived, count_tokens
from services.worker.leader.token_output import TokenOutput
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared.errors import DeadlineExceeded

log = structlog.get_logger(__name__)
CHECK_INTERVAL_S = 1.0
CHECK_PAUSE = 200  # times the duration of a check, which grows with the number of blocks: half a percent
FETCHING_CHECK_S = 0.1  # the longest that a deadline goes unseen while nothing is computed
# A step of more tokens takes long against the time to plan one, and a prompt that comes meanwhile would have
# to wait for the one that is queued as well.
RUN_AHEAD_TOKENS = 64
YIELD_NS = 200_000  # an iteration of the event loop costs as much as a step of a few sequences


class _Step(NamedTuple):
    """A step that was submitted at that time; for the log: when, in nanoseconds, and of how many tokens."""

    plan: StepPlan
    num_tokens: int
    result: asyncio.Future[StepResult]
    submitted: float
    planned_ns: int
    ready_ns: int
    submitted_ns: int
    decode_tokens: int
    sequences: int


class EngineLoop:
    """Drives the engine while it is up."""

    def __init__(
        self,
        context: LeaderContext,
        engine: EngineState,
        supervisor: EngineSupervisor,
        table: RequestTable,
        kv_tier: KVTier,
        *,
        output: TokenOutput,
        adapters: AdapterLoads,
        drafts: DraftRounds | None = None,
    ) -> None:
        self._engine = engine
        self._supervisor = supervisor
        self._table = table
        self._kv_tier = kv_tier
        self._output = output
        self._adapters = adapters
        self._drafts = drafts
        self._metrics = context.metrics
        self._step_tokens = context.metrics.requests_ended.step_tokens.series()
        self._clock = context.clock
        self._next_check = 0.0
        self._steps: deque[_Step] = deque()  # submitted and not done, oldest first
        self._last_done = 0.0  # or when the engine got a step after it was idle
        self._idle = True
        self._run_ahead, self._streams = 0, False  # of the engine
        self._yielded_ns = 0  # when the event loop ran last
        self._failed_idle = False  # the engine died between steps; the next one says why
        engine.engine.watch_failures(self._on_idle_failure)

    async def start_engine(self) -> None:
        """Starts the engine. Raises `EngineFailed` when it does not come up."""
        self._failed_idle, self._idle = False, True
        info = await self._supervisor.start_engine()
        self._run_ahead, self._streams = info.run_ahead, info.streams
        self._steps.clear()

    async def run_steps(self) -> None:
        """Steps until cancelled; a failed engine is started again when that is due."""
        while True:
            try:
                if not self._supervisor.is_up:
                    await self.start_engine()
                    await self._supervisor.announce_recovery()
                await self._step_until_failure()
            except EngineFailed as error:
                self._supervisor.lose_engine(error)
            except Exception as bug:  # a bug must not leave requests hanging
                log.exception("the engine loop failed")
                why = f"{type(bug).__name__} in the leader; the log has the trace"
                self._supervisor.lose_engine(EngineFailed(why, "leader_bug", fault=True))
            await self._supervisor.restart_due()

    async def _step_until_failure(self) -> NoReturn:
        work, scheduler, steps = self._engine.work, self._engine.scheduler, self._steps
        assert scheduler is not None
        while True:
            if not steps and not scheduler.has_work and not self._failed_idle:  # the next step says why
                self._check(scheduler)
                self._idle = True
                work.clear()
                await work.wait()
            if self._drafts is not None:
                await self._guess(self._drafts, scheduler)
            while self._may_submit(scheduler) and self._submit_step(scheduler):
                pass
            if not steps and scheduler.has_work:  # all that could run waits for blocks from the store
                self._idle = True
                work.clear()
                with suppress(TimeoutError):  # deadlines pass meanwhile
                    async with asyncio.timeout(FETCHING_CHECK_S):
                        await work.wait()
            if steps and self._streams:
                deadline_s = scheduler.queues.earliest_deadline - self._clock()
                if not await self._is_done_first(steps[0], work, deadline_s):
                    self._engine.engine.hurry()
                await self._take_result(scheduler, steps.popleft())
            elif steps and (not self._may_submit(scheduler) or await self._is_done_first(steps[0], work)):
                await self._take_result(scheduler, steps.popleft())
            if monotonic_ns() - self._yielded_ns >= YIELD_NS:
                await asyncio.sleep(0)
                self._yielded_ns = monotonic_ns()

    async def _guess(self, drafts: DraftRounds, scheduler: Scheduler) -> None:
        """Has the draft model guess tokens for the next step, once the last one is done."""
        if self._steps:
            drafts.see_engine(scheduler)
        else:  # its time is no step's, which the limit of prompts beside decodes goes by
            self._last_done += await drafts.guess(scheduler, self._engine.facts.vocab_size)

    def _may_submit(self, scheduler: Scheduler) -> bool:
        """Whether a step may be submitted before those in flight are done."""
        steps = self._steps
        if not steps:
            return True
        if len(steps) > self._run_ahead or steps[-1].num_tokens > RUN_AHEAD_TOKENS:
            return False
        if steps[-1].num_tokens > steps[-1].decode_tokens and scheduler.is_shared:
            return False
        # it must be known in which step an engine died; and a request that comes waits for one step only
        return not (scheduler.trials.sequences or scheduler.background_alone or scheduler.waits_for_drafts)

    def _submit_step(self, scheduler: Scheduler) -> bool:
        """Plans a step and gives it to the engine; False if there is nothing to do now."""
        now, metrics, planned_ns, queues = self._clock(), self._metrics, monotonic_ns(), scheduler.queues
        if now >= queues.earliest_deadline:
            for sequence in scheduler.expire(now):
                self._fail_expired(sequence.request_id)
        preempted = queues.num_preemptions
        plan = scheduler.plan()
        if queues.fetches.has_new:
            self._kv_tier.order_fetches(scheduler)
        if scheduler.adapters.has_orders:
            self._adapters.order_loads(scheduler)
        if queues.num_preemptions > preempted:
            metrics.preemptions.inc(queues.num_preemptions - preempted)
        if plan.admit:
            queried, cached = scheduler.admission.take_counts()
            metrics.prefix_cache_queries.inc(queried)
            metrics.prefix_cache_hits.inc(cached)
        if plan.is_empty and not self._failed_idle:
            return False
        if plan.admit:
            self._mark_admitted(scheduler, {new.seq_id for new in plan.admit})
        if scheduler.throttle.num_cuts:
            cuts, budget = scheduler.throttle.take_cuts()
            metrics.prefill_cut_steps.inc(cuts)
            metrics.prefill_budget.set(budget)
        if self._idle:
            self._last_done, self._idle = now, False
        ready_ns = monotonic_ns()
        submitted = self._engine.engine.submit(plan)
        result = submitted if isinstance(submitted, asyncio.Future) else asyncio.ensure_future(submitted)
        submitted_ns = monotonic_ns()
        decode_tokens, prefill_tokens = count_tokens(plan)
        num_tokens, sequences = decode_tokens + prefill_tokens, len(plan.chunks)
        moments_ns = planned_ns, ready_ns, submitted_ns
        self._steps.append(_Step(plan, num_tokens, result, now, *moments_ns, decode_tokens, sequences))
        if scheduler.lacks_masks:
            self._supply_masks(scheduler)
        return True

    def _mark_admitted(self, scheduler: Scheduler, seq_ids: set[int]) -> None:
        totals = self._engine.totals.shown()
        for sequence in scheduler.running:
            if sequence.seq_id in seq_ids:
                generation = self._table.by_key.get(sequence.request_id)
                if generation is not None:
                    generation.computing_at = generation.computing_at or self._clock()
                sequence.timeline.mark("computing", {"choice": sequence.choice, **totals})

    def _supply_masks(self, scheduler: Scheduler) -> None:
        """Gives the engine the masks of steps in flight, which the ranks compute meanwhile."""
        for masks in scheduler.take_masks():
            self._engine.engine.supply_masks(masks)

    async def _take_result(self, scheduler: Scheduler, step: _Step) -> None:
        """Waits for the result of a step, unless it is there, and books it."""
        waited = not step.result.done()
        result = await step.result
        if waited:
            self._yielded_ns = monotonic_ns()
        self._book_result(scheduler, step, result)

    async def _is_done_first(self, step: _Step, work: asyncio.Event, most_s: float = math.inf) -> bool:
        """Waits for the result of a step, or for something to plan behind it; whether it was the result.

        Args:
            most_s: Seconds after which it waits no longer.
        """
        if step.result.done():
            return True
        work.clear()
        waiter: asyncio.Future[bool] = asyncio.ensure_future(work.wait())
        try:
            timeout_s = None if most_s == math.inf else max(0.0, most_s)
            await asyncio.wait((step.result, waiter), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return step.result.done()

    def _book_result(self, scheduler: Scheduler, step: _Step, result: StepResult) -> None:
        now, step_log = self._clock(), self._engine.step_log
        decode_tokens, num_tokens = step.decode_tokens, step.num_tokens
        if self._streams:
            decode_tokens, prefill_tokens = count_arrived(step.plan, result)
            num_tokens = decode_tokens + prefill_tokens
        step_log.add(
            result.step_id,
            (step.planned_ns, step.ready_ns, step.submitted_ns, monotonic_ns()),
            decode_tokens,
            num_tokens - decode_tokens,
            step.sequences,
        )
        self._metrics.step.observe(now - max(step.submitted, self._last_done))
        self._step_tokens.observe(num_tokens)
        step_s, self._last_done = now - self._last_done, now
        self._engine.count_tokens(num_tokens)
        self._engine.totals.add(result, num_tokens)
        prompts = scheduler.apply_prompts(result) if result.prompts else []
        advances = scheduler.apply(result, step_s)
        if scheduler.speculation.most:
            self._metrics.speculation.add(scheduler.speculation.take_counts())
        if scheduler.lacks_masks:  # first, since rank 0 may wait for those of the step that runs
            self._supply_masks(scheduler)
        if prompts:
            self._output.emit_prompts(prompts)
        self._output.emit_tokens(scheduler, advances, now)
        step_log.note_booked(monotonic_ns())

    def _on_idle_failure(self) -> None:
        self._failed_idle = True
        self._engine.work.set()

    def _fail_expired(self, key: str) -> None:
        generation = self._table.by_key.get(key)
        if generation is not None:
            waited = self._clock() - generation.arrived
            error = DeadlineExceeded(f"the deadline passed {waited:.1f} s after the group took the request")
            self._table.fail_request(generation, error)

    def _check(self, scheduler: Scheduler) -> None:
        now = self._clock()
        if now >= self._next_check:
            scheduler.check_invariants()
            self._next_check = now + max(CHECK_INTERVAL_S, CHECK_PAUSE * (self._clock() - now))
