"""Prepares accepted requests: history, tokens, sequences, KV lookup; then the scheduler gets them.

Short requests are prepared at once; those that need a session record, a long text tokenized or a KV lookup go
on in a task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import structlog

from services.worker.domain.generation.failure_owners import PROMPT
from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.leader.context import LeaderContext
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer
from services.worker.leader.intake.request_checks import check_guest, resumed_as
from services.worker.leader.intake.sequence_builder import SequenceBuilder
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.turn_start import TurnStarter
from shared.errors import Internal, RyzError
from shared.messages import KVSource, Route

log = structlog.get_logger(__name__)
ACCEPT_S = 0.015  # for which `Accepted` waits for the first tokens; a caller shows nothing of it before

Prepare = Callable[
    [], Coroutine[None, None, KVSource]
]  # called by the task: one that never runs leaves nothing


class Preparation:
    """Brings requests from their acceptance to the scheduler."""

    def __init__(
        self,
        context: LeaderContext,
        table: RequestTable,
        turns: TurnStarter,
        tokenizer: PromptTokenizer,
        builder: SequenceBuilder,
        *,
        kv_tier: KVTier,
    ) -> None:
        self._context = context
        self._table = table
        self._turns = turns
        self._tokenizer = tokenizer
        self._builder = builder
        self._kv_tier = kv_tier
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = log.bind()  # once: that costs more than a line that is not written

    def prepare_request(self, generation: Generation, route: Route) -> None:
        """Prepares and starts a request, now or in a task. Errors end it."""
        request, builder = generation.request, self._builder
        generation.resumed_as = resumed_as(request, generation.adapter, builder.facts)
        if self._turns.needs_lookup(request) or not self._tokenizer.is_short(request):
            self._start_in_background(generation, partial(self._prepare, generation, route), route)
            return
        try:
            self._check_request(generation)
            if not builder.has_grammar(generation):
                self._start_in_background(generation, partial(self._prepare, generation, route), route)
                return
            turn = self._turns.begin_new(generation)
            tokens = self._tokenizer.tokenize_inline(request, turn)
            if tokens is None:
                self._start_in_background(generation, partial(self._prepare, generation, route), route)
                return
            builder.build_choices(generation, tokens, turn)
            generation.timeline.mark("tokenized")
            kv = self._kv_tier.prefixes.source_at_hand(generation)
            if kv is None:
                find = partial(self._kv_tier.prefixes.find_source, generation)
                self._start_in_background(generation, find, route)
            else:
                self._start_request(generation, route, kv)
        except Exception as error:  # whatever it is, the caller gets an answer
            self._send_accepted(generation, route)
            self._fail_request(generation, error)

    def _check_request(self, generation: Generation) -> None:
        """Checks what does not depend on the history; raises what the checks raise."""
        request, adapter, builder = generation.request, generation.adapter, self._builder
        check_guest(request, adapter, builder.facts)
        builder.check_request(request, adapter)

    async def wait_tasks(self) -> None:
        """Waits for the tasks of requests that were failed or cancelled before."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start_in_background(self, generation: Generation, prepare: Prepare, route: Route) -> None:
        task = asyncio.create_task(self._start_later(generation, prepare, route))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._table.track_preparation(generation, task)

    async def _start_later(self, generation: Generation, prepare: Prepare, route: Route) -> None:
        """Starts the request when it is prepared; sends `Accepted` before if that takes long."""
        prepared = asyncio.create_task(prepare())
        try:
            within_s = ACCEPT_S
            if self._turns.needs_lookup(generation.request):
                within_s += self._turns.yield_s(generation)
            await asyncio.wait({prepared}, timeout=within_s)
            if not prepared.done():
                self._send_accepted(generation, route, generation.session_turns)
            kv = await prepared
            self._start_request(generation, route, kv)
        except Exception as error:  # whatever it is, the caller gets an answer
            self._send_accepted(generation, route)
            self._fail_request(generation, error)
        finally:
            prepared.cancel()

    async def _prepare(self, generation: Generation, route: Route) -> KVSource:
        """Looks up the history if there is any, makes sequences, and looks up their KV."""
        request, tokenizer = generation.request, self._tokenizer
        self._check_request(generation)
        if not self._builder.has_grammar(generation):
            await self._builder.compile_grammar(generation)
        if self._turns.needs_lookup(request):
            last_group = route.last_group if route.last_group != self._context.group else ""
            turn: TurnContext | None = await self._turns.begin_turn(generation, last_group)
        else:
            turn = self._turns.begin_new(generation)
        if turn is not None:
            generation.session_turns, generation.session_version = turn.number, turn.version
            generation.timeline.mark("history", {"turns": turn.number})
        if request.continues:
            prompt = await tokenizer.tokenize_continued(request, turn)
            await self._builder.build_long_choices(generation, prompt.tokens, turn, prompt.given)
        else:
            short = tokenizer.is_short(request) and (turn is None or turn.record is None)
            tokens = tokenizer.tokenize_inline(request, turn) if short else None
            if tokens is None:
                tokens = await tokenizer.tokenize_in_thread(request, turn)
            await self._builder.build_long_choices(generation, tokens, turn)
        generation.timeline.mark("tokenized")
        return await self._kv_tier.prefixes.find_source(generation)

    def _start_request(self, generation: Generation, route: Route, kv: KVSource) -> None:
        self._context.metrics.kv_sources.labels(kv or "unknown").inc()
        generation.timeline.mark("queued", {"kv": kv, "prompt_tokens": generation.prompt_tokens})
        self._send_accepted(generation, route, generation.session_turns, kv)
        self._log.debug("prompt taken", reason=route.reason, kv=kv)
        self._kv_tier.begin_generation(generation)  # first: the request may end when it starts
        self._table.start_request(generation)

    def _send_accepted(
        self, generation: Generation, route: Route, session_turns: int = 0, kv: KVSource = ""
    ) -> None:
        """Sends the first frame, unless it was sent before or the request has ended."""
        if generation.was_accepted or generation.ended:
            return
        frame = generation.accepted(
            self._context.group,
            route.reason,
            session_turns,
            kv=kv,
            instance_id=self._context.instance_id,
            fingerprint=self._builder.facts.fingerprint_with(generation.adapter),
        )
        self._table.publisher.send(generation, frame, within_s=ACCEPT_S)

    def _fail_request(self, generation: Generation, error: Exception) -> None:
        if not isinstance(error, RyzError):
            log.error("request failed", exc_info=error)
            error = Internal("the group could not prepare the request; its log says why", reason=PROMPT)
        self._table.fail_request(generation, error)
