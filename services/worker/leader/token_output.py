"""Turns the tokens of a step into frames, and decides when each stream's frames are sent.

Streams get their first and last text at once. The rest is sent at the intervals of `StreamPace`, for all
streams after the same step, so that processes between leader and callers wake up once for several steps. If
a step takes longer than the interval, a timer sends what waits.
"""

import asyncio

import structlog

from services.worker.domain.generation.failure_owners import ANSWER, GRAMMAR, GUEST
from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.stream_pace import StreamPace
from services.worker.domain.generation.token_constraint import is_too_complex
from services.worker.domain.scheduling.bookings import PromptAdvance
from services.worker.domain.scheduling.scheduler import Advance, Scheduler
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.request_table import RequestTable
from services.worker.rank_protocol.plan import Sampled
from shared.errors import GroupLost, Internal, InvalidRequest, RyzError
from shared.messages import GenerateRequest

log = structlog.get_logger(__name__)
WHOLE_FLUSH_S = 0.05
WHOLE_FLUSH_ITEMS = 2048  # tokens and their alternatives in a frame, which has to fit into a message


class TokenOutput:
    """Gives generations their tokens, and sends or holds back what callers have not got."""

    def __init__(
        self, context: LeaderContext, engine: EngineState, table: RequestTable, pace: StreamPace
    ) -> None:
        self._metrics = context.metrics
        self._clock = context.clock
        self._totals = engine.totals
        self._table = table
        self._pace = pace
        self._held: dict[str, Generation] = {}  # streams with tokens that wait for the interval's end
        self._timer: asyncio.TimerHandle | None = None  # set while tokens wait

    def emit_tokens(self, scheduler: Scheduler, advances: list[Advance], now: float) -> None:
        """Gives each generation its tokens of a step, and sends what is due."""
        table, touched = self._table, dict[str, Generation]()
        num_prompts = 0
        for advance in advances:
            sequence = advance.sequence
            num_prompts += sequence.prompt_only
            generation = table.by_key.get(sequence.request_id)
            if generation is None:  # another choice of it failed a moment ago
                continue
            if advance.sampled.error:
                self._fail_without_token(generation, advance.sampled, sequence.grammar_error)
                continue
            try:
                choice = generation.choices[sequence.choice]
                if choice.finish_reason is not None:
                    continue  # forced tokens after a stop string
                reason = choice.advance(advance.sampled, advance.finish_reason)
            except Exception:  # a bug in one request's text must not end the others
                log.exception("no text from tokens", **generation.log_ids)
                table.fail_request(generation, _no_text())
                continue
            if reason is not None:
                generation.open_choices -= 1
                if advance.end < len(sequence.tokens):
                    del sequence.tokens[advance.end :]
                if advance.finish_reason is None:  # a stop string
                    scheduler.end(sequence)
            touched[sequence.request_id] = generation
        self._metrics.generation_tokens.inc(len(advances) - num_prompts)
        self._send_due(touched, now)

    def emit_prompts(self, advances: list[PromptAdvance]) -> None:
        """Sends what a step has brought of prompts; to be called before `emit_tokens`."""
        for sequence, part in advances:
            generation = self._table.by_key.get(sequence.request_id)
            if generation is None:
                continue
            if part.error:
                failed = Sampled(seq_id=sequence.seq_id, token_id=0, error=part.error)
                self._fail_without_token(generation, failed, None)
                continue
            prompt = generation.choices[sequence.choice].prompt
            if prompt is not None:
                prompt.add_part(part)
            if part.scores:
                self._table.send_tokens(generation)

    def _fail_without_token(
        self, generation: Generation, sampled: Sampled, grammar_error: Exception | None
    ) -> None:
        error = error_of(generation.request, sampled, grammar_error)
        if isinstance(error, Internal):
            log.error(
                "the model gave no token", **generation.log_ids, why=sampled.error, exc_info=grammar_error
            )
            self._metrics.failed_sequences.inc()
        elif isinstance(error, GroupLost):
            log.warning("the guest ended a sequence", **generation.log_ids, why=sampled.error)
            self._metrics.failed_sequences.inc()
        else:
            log.info("the request leaves no token", **generation.log_ids, why=error.message)
        self._table.fail_request(generation, error)

    def _send_due(self, touched: dict[str, Generation], now: float) -> None:
        """Sends the new tokens of these generations, or holds them until the interval is over."""
        num_streams = 0
        for generation in touched.values():
            num_streams += generation.request.delivery == "stream"
        due_at = self._pace.due_at(num_streams)
        due = now >= due_at
        since: dict[float, int] = {}  # how many got a token after their last one at that time
        for generation in touched.values():
            if generation.ended:
                continue
            first, last_at = not generation.first_token_at, generation.last_token_at
            if first:
                self._note_first(generation, now)
            else:
                since[last_at] = since.get(last_at, 0) + 1
            generation.last_token_at = now
            if not generation.open_choices:
                self._flush(generation, now)
                generation.timeline.mark("last token", self._totals.shown())
                if not generation.ended:
                    self._table.finish_request(generation)
            elif not self._may_wait(generation, now, due or first):
                self._flush(generation, now)
        for last_at, number in since.items():
            self._metrics.inter_token.observe(now - last_at, number)
        if due:
            self._pace.note_sent(now)
            self._send_held(now)
        elif self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(due_at - now, self._send_late)

    def _send_late(self) -> None:
        """Sends what waits when no step has ended by the end of the interval."""
        self._timer, now = None, self._clock()
        self._pace.note_sent(now)
        self._send_held(now)

    def _note_first(self, generation: Generation, now: float) -> None:
        generation.first_token_at = now
        generation.timeline.mark("first token")
        self._metrics.first_token.observe(now - generation.arrived)

    def _may_wait(self, generation: Generation, now: float, due: bool) -> bool:
        """Whether a generation's tokens are held until more can be sent with them."""
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

    def _send_held(self, now: float) -> None:
        """Sends what waits for streams, and ends the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        for generation in held.values():
            if not generation.ended:
                self._flush(generation, now)

    def _flush(self, generation: Generation, now: float) -> None:
        generation.last_flush_at = now
        self._held.pop(generation.key, None)
        try:
            self._table.send_tokens(generation)
        except Exception:  # a bug in one request's frames must not end the others
            log.exception("no frame from tokens", **generation.log_ids)
            generation.open_choices = max(1, generation.open_choices)  # it is not complete
            self._table.fail_request(generation, _no_text())


def error_of(request: GenerateRequest, sampled: Sampled, grammar_error: Exception | None) -> RyzError:
    """Returns the error of a sequence without a next token.

    Args:
        sampled: Why there is none.
        grammar_error: Why its grammar gave no mask, or took no token, if it did not.
    """
    if grammar_error is not None and not is_too_complex(grammar_error):
        return Internal("the group could not follow the grammar; its log says why", reason=GRAMMAR)
    if sampled.cause == GUEST:  # the caller goes on at another group, with the tokens that it has
        return GroupLost(f"the group's guest gave no next token: {sampled.error}", reason=GUEST)
    if sampled.cause != "demand":
        return Internal(f"the model gave no next token: {sampled.error}", reason=sampled.cause)
    param = "structured" if request.structured is not None else "tools" if request.tools else "logit_bias"
    why = sampled.error if grammar_error is None else str(grammar_error)
    return InvalidRequest(f"`{param}` leaves no next token: {why}", param=param, reason="no_token")


def _no_text() -> Internal:
    return Internal("the group could not make text of the tokens; its log says why", reason=ANSWER)
