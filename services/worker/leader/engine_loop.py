"""The engine loop: plan a step, run it, turn its tokens into frames; a failed engine ends its requests.

While a short step runs, the next one is planned and submitted, so ranks need not wait for the leader. It
yields to the event loop after each step, so that work, cancels and frames go on between steps. What a step
computes is the scheduler's decision, what the caller sees the generation's, and what follows a failure that
of `MultiGPUOrchestrator`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

import structlog

from services.worker.domain.generation.request import Generation
from services.worker.domain.scheduling.block_manager import BlockManager
from services.worker.domain.scheduling.block_names import BlockNames, PrefixSharing
from services.worker.domain.scheduling.scheduler import Advance, Scheduler, SchedulerLimits
from services.worker.leader.crash_suspects import fail_suspects
from services.worker.leader.intake.sequence_builder import EngineFacts
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.metrics import WorkerMetrics
from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine, EngineFailed, EngineInfo, StepResult
from shared.errors import DeadlineExceeded, GroupLost, Internal

log = structlog.get_logger(__name__)
WHOLE_FLUSH_S = 0.05
WHOLE_FLUSH_ITEMS = 2048  # tokens and their alternatives in a frame, which has to fit into a message
CHECK_INTERVAL_S = 1.0
FETCHING_CHECK_S = 0.1  # the longest that a deadline goes unseen while nothing is computed
# A step of more tokens takes long against the time to plan one, and a prompt that comes meanwhile would have
# to wait for the one that is queued as well.
RUN_AHEAD_TOKENS = 64


class _Step(NamedTuple):
    """A step that was submitted at that time."""

    num_tokens: int
    result: asyncio.Future[StepResult]
    submitted: float


class EngineLoop:
    """Drives the engine while it is up.

    group: starts the engine, and says when it is started again. kv_tier: the store for KV blocks.
    announce: called when the state has changed.
    stream_interval_s: streams get their first and last text at once, the rest at most so often, all of them
        after the same steps, so that processes between here and the callers wake up once for several steps.
    """

    def __init__(
        self,
        engine: Engine,
        group: MultiGPUOrchestrator,
        *,
        generations: RequestTable,
        limits: SchedulerLimits,
        kv_tier: KVTier,
        prefix_sharing: PrefixSharing,
        metrics: WorkerMetrics,
        context_length: int,
        announce: Callable[[], Awaitable[None]],
        stream_interval_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._group = group
        self._generations = generations
        self._limits = limits
        self._kv_tier = kv_tier
        self._prefix_sharing = prefix_sharing
        self._metrics = metrics
        self._announce = announce
        self._stream_interval_s = stream_interval_s
        self._streams_sent_at = 0.0
        self._held: dict[str, Generation] = {}  # streams with tokens that wait for the interval's end
        self._clock = generations.clock
        self._next_check = 0.0
        self._steps: deque[_Step] = deque()  # submitted and not done, oldest first
        self._last_done = 0.0
        self._run_ahead = 0
        self._failed_idle = False  # the engine died between steps; the next one says why
        engine.watch_failures(self._on_idle_failure)
        self.info: EngineInfo | None = None
        self.room = EngineFacts(context_length, 0)
        self.num_tokens = 0  # computed so far, prefill and decode

    async def start(self) -> None:
        """Starts the engine. Raises `EngineFailed` when it does not come up."""
        self._failed_idle = False
        info = await self._group.start()
        # the engine's, not the config's: scaled positions reach beyond what the config calls the longest
        context_length = min(info.context_length, info.num_blocks * BLOCK_SIZE)
        names = BlockNames(info.fingerprint, info.kv_format, self._prefix_sharing)
        self.info = info
        self.room = EngineFacts(
            context_length, info.vocab_size, f"{info.fingerprint}/{info.kv_format}", names
        )
        self._run_ahead = info.run_ahead
        self._steps.clear()
        scheduler = Scheduler(
            BlockManager(info.num_blocks),
            self._limits,
            names,
            costs=self._kv_tier.costs,
            clock=self._clock,
        )
        self._kv_tier.open(info, names, scheduler)
        self._generations.scheduler = scheduler

    async def run(self) -> None:
        """Steps until cancelled; a failed engine is started again when the group says so."""
        while True:
            try:
                if not self._group.is_up:
                    await self.start()
                    log.info("the engine is ready again")
                    await self._announce()
                await self._serve()
            except EngineFailed as error:
                self._lose(error)
            except Exception as error:  # a bug must not leave requests hanging
                log.exception("the engine loop failed")
                why = f"{type(error).__name__} in the leader; the log has the trace"
                self._lose(EngineFailed(why, "leader_bug", fault=True))
            await self._announce()
            await self._group.restart_due()

    async def _serve(self) -> NoReturn:
        work, scheduler, steps = self._generations.work, self._generations.scheduler, self._steps
        assert scheduler is not None
        while True:
            if not steps and not scheduler.has_work and not self._failed_idle:  # the next step says why
                self._check(scheduler)
                work.clear()
                await work.wait()
            while self._has_place and self._submit(scheduler):
                pass
            if not steps and scheduler.has_work:  # all that could run waits for blocks from the store
                work.clear()
                with suppress(TimeoutError):  # deadlines pass meanwhile
                    async with asyncio.timeout(FETCHING_CHECK_S):
                        await work.wait()
            if steps and (not self._has_place or await self._comes_first(steps[0], work)):
                step = steps.popleft()
                self._book(scheduler, step, await step.result)
            await asyncio.sleep(0)

    @property
    def _has_place(self) -> bool:
        """Whether a step may be submitted before those that were are done."""
        steps, scheduler = self._steps, self._generations.scheduler
        if steps and scheduler is not None and scheduler.trials.sequences:
            return False  # which step an engine died in has to be known
        return not steps or (len(steps) <= self._run_ahead and steps[-1].num_tokens <= RUN_AHEAD_TOKENS)

    def _submit(self, scheduler: Scheduler) -> bool:
        """Plans a step and gives it to the engine; False if there is nothing to do now."""
        now, metrics = self._clock(), self._metrics
        for sequence in scheduler.expire(now):
            self._expire(sequence.request_id)
        preempted = scheduler.num_preemptions
        plan = scheduler.plan()
        self._kv_tier.order(scheduler)
        if scheduler.num_preemptions > preempted:
            metrics.preemptions.inc(scheduler.num_preemptions - preempted)
        if plan.admit:
            queried, cached = scheduler.admission.take_counts()
            metrics.prefix_cache_queries.inc(queried)
            metrics.prefix_cache_hits.inc(cached)
        if not plan.slices and not plan.release and not plan.store and not self._failed_idle:
            return False
        result = asyncio.ensure_future(self._engine.submit(plan))
        num_tokens = sum([piece.num_tokens for piece in plan.slices])
        self._steps.append(_Step(num_tokens, result, now))
        return True

    async def _comes_first(self, step: _Step, work: asyncio.Event) -> bool:
        """Waits for the result of a step, or for something to plan behind it; whether it was the result."""
        work.clear()
        waiter: asyncio.Future[bool] = asyncio.ensure_future(work.wait())
        try:
            await asyncio.wait((step.result, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return step.result.done()

    def _book(self, scheduler: Scheduler, step: _Step, result: StepResult) -> None:
        now = self._clock()
        self._metrics.step.observe(now - max(step.submitted, self._last_done))
        self._last_done = now
        self.num_tokens += step.num_tokens
        self._emit(scheduler, scheduler.apply(result), now)

    def _on_idle_failure(self) -> None:
        self._failed_idle = True
        self._generations.work.set()

    def _emit(self, scheduler: Scheduler, advances: list[Advance], now: float) -> None:
        """Gives each generation its tokens, and sends what is to be sent now."""
        generations, touched = self._generations, dict[str, Generation]()
        self._metrics.generation_tokens.inc(len(advances))
        for advance in advances:
            sequence = advance.sequence
            generation = generations.by_id.get(sequence.request_id)
            if generation is None:  # another choice of it failed a moment ago
                continue
            if advance.sampled.error:
                self._no_token(generation, advance.sampled.error)
                continue
            try:
                choice = generation.choices[sequence.choice]
                reason = choice.advance(advance.sampled, advance.finish_reason)
            except Exception:  # one request's bug must not be the group's
                log.exception("no text from tokens", request_id=sequence.request_id)
                generations.fail(generation, Internal("the group could not make text of the tokens"))
                continue
            if reason is not None:
                generation.open_choices -= 1
                if advance.finish_reason is None:  # a stop string
                    scheduler.end(sequence)
            touched[sequence.request_id] = generation
        due = now - self._streams_sent_at >= self._stream_interval_s
        for generation in touched.values():
            if not generation.ended:
                self._send(generation, now, due)
        if due:
            self._streams_sent_at = now
            self._send_held(now)

    def _send_held(self, now: float) -> None:
        """Sends what was held back for streams that have no token of this step."""
        held, self._held = self._held, {}
        for generation in held.values():
            if not generation.ended:
                self._flush(generation, now)

    def _no_token(self, generation: Generation, why: str) -> None:
        """The model has no next token for one sequence: its request fails, the others go on."""
        log.error("the model gave no token", request_id=generation.request.request_id, why=why)
        self._metrics.failed_sequences.inc()
        self._generations.fail(generation, Internal(f"the model gave no next token: {why}"))

    def _send(self, generation: Generation, now: float, due: bool) -> None:
        """Sends a generation's new tokens, or keeps them; `due`: the interval of the streams is over."""
        first = not generation.first_token_at
        if not first:
            self._metrics.inter_token.observe(now - generation.last_token_at)
        else:
            generation.first_token_at = now
            self._metrics.first_token.observe(now - generation.arrived)
        generation.last_token_at = now
        complete = generation.open_choices == 0
        if not complete and self._may_wait(generation, now, due or first):
            return
        self._flush(generation, now)
        if complete:
            self._generations.on_all_tokens(generation)

    def _may_wait(self, generation: Generation, now: float, due: bool) -> bool:
        """Whether tokens are better sent later, together with others."""
        request = generation.request
        if request.delivery == "whole":
            due = now - generation.last_flush_at >= WHOLE_FLUSH_S
        if due:
            return False
        gathered = 0
        for choice in generation.choices:
            gathered += len(choice.unsent_tokens)
        if gathered * (2 + request.sampling.logprobs) >= WHOLE_FLUSH_ITEMS:
            return False
        if request.delivery == "stream":
            self._held[generation.key] = generation
        return True

    def _flush(self, generation: Generation, now: float) -> None:
        generation.last_flush_at = now
        frame = generation.tokens()
        if frame is not None:
            self._generations.publisher.send(generation, frame)

    def _expire(self, key: str) -> None:
        generation = self._generations.by_id.get(key)
        if generation is not None:
            waited = self._clock() - generation.arrived
            error = DeadlineExceeded(f"the deadline passed {waited:.1f} s after the group took the request")
            self._generations.fail(generation, error)

    def _check(self, scheduler: Scheduler) -> None:
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            scheduler.check_invariants()

    def _lose(self, error: EngineFailed) -> None:
        """The engine is gone, and all running requests with it."""
        recovery, why = self._group.lost(error), str(error)
        log.error(
            "the engine failed",
            why=why,
            kind=error.failure.kind,
            restart_in_s=round(recovery.pause_s, 2),
            gives_up=recovery.gives_up,
        )
        self._metrics.engine_failures.inc()
        scheduler, self._generations.scheduler = self._generations.scheduler, None
        failure, suspects = error.failure, set[str]()
        if failure.fault and scheduler is not None:
            suspects = scheduler.requests_in(failure.step_ids)
        self._kv_tier.close()
        fail_suspects(self._generations, suspects, why)
        self._generations.fail_all(GroupLost(f"the group's engine failed: {why}", reason="engine_failed"))
