"""The engine loop: plan a step, run it, turn its tokens into frames; and restart a failed engine.

It yields to the event loop after each step, so that work, cancels and frames go on between steps. What a
step computes is the scheduler's decision, what the caller sees the generation's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from services.worker.domain.blocks import BlockManager
from services.worker.domain.plan import BLOCK_SIZE, Engine, EngineFailed, EngineInfo
from services.worker.domain.request import Generation
from services.worker.domain.scheduler import Advance, Limits, Scheduler
from services.worker.leader.generations import Generations
from services.worker.leader.prepare import Room
from services.worker.metrics import Metrics
from shared.errors import DeadlineExceeded, GroupLost, Internal
from shared.messages import State

log = structlog.get_logger(__name__)
WHOLE_FLUSH_S = 0.05
WHOLE_FLUSH_ITEMS = 2048  # tokens and their alternatives in a frame, which has to fit into a message
RESTART_PAUSE_S = (0.5, 10.0)  # first and longest
CHECK_INTERVAL_S = 1.0


class EngineLoop:
    """Owns the engine's life. `state` is what heartbeats tell, `failure` why it is "failed".

    announce: called when the state has changed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        generations: Generations,
        limits: Limits,
        metrics: Metrics,
        context_length: int,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._generations = generations
        self._limits = limits
        self._metrics = metrics
        self._model_context = context_length
        self._announce = announce
        self._clock = generations.clock
        self._next_check = 0.0
        self._failed_idle = False  # the engine died between steps; the next one says why
        engine.watch(self._on_idle_failure)
        self.state: State = "starting"
        self.failure = ""
        self.info: EngineInfo | None = None
        self.room = Room(context_length, 0)
        self.num_tokens = 0  # computed so far, prefill and decode

    async def start(self) -> None:
        """Starts the engine. Raises `EngineFailed` when it does not come up."""
        self._failed_idle = False
        info = await self._engine.start()
        context_length = min(self._model_context, info.context_length, info.num_blocks * BLOCK_SIZE)
        self.info, self.room = info, Room(context_length, info.vocab_size)
        self._generations.scheduler = Scheduler(BlockManager(info.num_blocks), self._limits)
        self.state, self.failure = "ready", ""

    async def run(self) -> None:
        """Steps until cancelled; a failed engine is started again, after a pause that grows."""
        pause = RESTART_PAUSE_S[0]
        while True:
            try:
                if self.state == "failed":
                    await self.start()
                    log.info("the engine is ready again")
                    await self._announce()
                await self._serve()
            except EngineFailed as error:
                worked = self._lose(str(error))
            except Exception as error:  # a bug must not leave requests hanging
                log.exception("the engine loop failed")
                worked = self._lose(f"{type(error).__name__} in the leader; the log has the trace")
            if worked:
                pause = RESTART_PAUSE_S[0]
            await self._announce()
            await self._engine.stop()
            await asyncio.sleep(pause)
            pause = min(pause * 2, RESTART_PAUSE_S[1])

    async def _serve(self) -> NoReturn:
        generations, engine = self._generations, self._engine
        scheduler = generations.scheduler
        assert scheduler is not None
        while True:
            if not scheduler.has_work:
                self._check(scheduler)
                generations.work.clear()
                await generations.work.wait()
            started = self._clock()
            for sequence in scheduler.expire(started):
                self._expire(sequence.request_id)
            preempted = scheduler.num_preemptions
            plan = scheduler.plan()
            if scheduler.num_preemptions > preempted:
                self._metrics.preemptions.inc(scheduler.num_preemptions - preempted)
            if plan.slices or plan.release or self._failed_idle:
                result = await engine.submit(plan)
                now = self._clock()
                self._metrics.step.observe(now - started)
                self._emit(scheduler, scheduler.apply(result), now)
                for piece in plan.slices:
                    self.num_tokens += len(piece.token_ids)
            await asyncio.sleep(0)

    def _on_idle_failure(self) -> None:
        self._failed_idle = True
        self._generations.work.set()

    def _emit(self, scheduler: Scheduler, advances: list[Advance], now: float) -> None:
        """Gives each generation its tokens, and sends what is to be sent now."""
        generations, touched = self._generations, {}
        self._metrics.generation_tokens.inc(len(advances))
        for advance in advances:
            sequence = advance.sequence
            generation = generations.by_id.get(sequence.request_id)
            if generation is None:  # another choice of it failed a moment ago
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
        for generation in touched.values():
            if not generation.ended:
                self._send(generation, now)

    def _send(self, generation: Generation, now: float) -> None:
        if generation.first_token_at:
            self._metrics.inter_token.observe(now - generation.last_token_at)
        else:
            generation.first_token_at = now
            self._metrics.first_token.observe(now - generation.arrived)
        generation.last_token_at = now
        complete = generation.open_choices == 0
        if not complete and generation.request.delivery == "whole":
            gathered = 0
            for choice in generation.choices:
                gathered += len(choice.unsent_tokens)
            items = gathered * (2 + generation.request.sampling.logprobs)
            if now - generation.last_flush_at < WHOLE_FLUSH_S and items < WHOLE_FLUSH_ITEMS:
                return
        generation.last_flush_at = now
        frame = generation.tokens()
        if frame is not None:
            self._generations.publisher.send(generation.reply_to, frame)
        if complete:
            self._generations.on_all_tokens(generation)

    def _expire(self, request_id: str) -> None:
        generation = self._generations.by_id.get(request_id)
        if generation is not None:
            waited = self._clock() - generation.arrived
            error = DeadlineExceeded(f"the deadline passed {waited:.1f} s after the group took the request")
            self._generations.fail(generation, error)

    def _check(self, scheduler: Scheduler) -> None:
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            scheduler.check_invariants()

    def _lose(self, why: str) -> bool:
        """The engine is gone, and all running requests with it; says whether it had worked before."""
        log.error("the engine failed", why=why)
        self._metrics.engine_failures.inc()
        worked = self.state == "ready"
        self.state, self.failure = "failed", why
        self._generations.scheduler = None
        self._generations.fail_all(GroupLost(f"the group's engine failed: {why}", reason="engine_failed"))
        return worked
