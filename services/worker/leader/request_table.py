"""The requests that were accepted and have not ended: how they begin, end, fail and are cancelled.

Keeps requests, scheduler and retransmit buffer in step, so that an accepted request gets exactly one last
frame and leaves no block, queue slot or task behind.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import structlog

from services.worker.domain.generation.early_cancels import EarlyCancels
from services.worker.domain.generation.failure_owners import owner_of
from services.worker.domain.generation.generation import Generation, request_key
from services.worker.domain.generation.request_counts import RequestCounts
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.frame_publisher import FramePublisher
from services.worker.leader.kv_tier.block_ownership import BlockOwnership
from services.worker.leader.request_spans import RequestSpans
from services.worker.leader.sessions.turn_end import TurnFinisher
from services.worker.leader.sessions.turn_lines import TurnLines
from services.worker.leader.usage.request_usage import RequestUsage
from services.worker.leader.usage.running_reports import RunningReports
from shared.errors import Cancelled, RyzError
from shared.messages import GenerateRequest, Load
from shared.messages.base import MAX_ATTEMPT

log = structlog.get_logger(__name__)


class EndOfRequest(NamedTuple):
    """The parts that a request's end concerns.

    Attributes:
        finisher: Commits the turn of a request that has all its tokens.
        ownership: Owns the blocks that the request has written.
        turns: Lets the session's next turn begin.
        usage: Writes what the request has used.
        running: Tells the router that counts the request.
    """

    finisher: TurnFinisher
    ownership: BlockOwnership
    turns: TurnLines
    usage: RequestUsage
    running: RunningReports


class RequestTable:
    """Everything that was accepted and has not ended.

    Args:
        engine: Its scheduler gets the sequences.
        end: The parts that a request's end concerns.
        tombstone_s: How long a cancel of an unknown request holds, for when it overtakes the request.

    Attributes:
        by_key: Requests under their `request_key`.
        counts: How many were taken, and how they ended.
        doubt: Set while a control is to be run (`RequestCounts.wants_control`).
        buffer: Keeps the frames that were sent.
    """

    def __init__(
        self,
        context: LeaderContext,
        engine: EngineState,
        publisher: FramePublisher,
        end: EndOfRequest,
        tombstone_s: float = 5.0,
    ) -> None:
        self.publisher = publisher
        self.buffer = publisher.buffer
        self.by_key: dict[str, Generation] = {}
        self.counts = RequestCounts()
        self.doubt = asyncio.Event()
        self.spans = RequestSpans(context.spans, context.group, engine.step_log)
        self._metrics = context.metrics
        self._clock = context.clock
        self._engine = engine
        self._finisher, self._ownership, self._turns, self._usage, self._running = end
        self._early_cancels = EarlyCancels(tombstone_s)
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._slots_held = 0  # sequences of requests that are not with the scheduler yet
        self._arrivals = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def num_free(self, *, resumed: bool = False) -> int:
        """Returns how many sequences may come in now; below 0 if there are too many.

        Args:
            resumed: Count for a request that was admitted before. As many of those as may run are let in
                beyond the limit.
        """
        scheduler = self._engine.scheduler
        if scheduler is None:
            return 0
        more = scheduler.limits.max_running if resumed else 0
        return scheduler.num_free - self._slots_held + more

    def open_request(self, generation: Generation) -> None:
        """Takes a request; its slots are held until `start_request` or its end."""
        key, request = generation.key, generation.request
        self.by_key[key] = generation
        self._running.begin(generation)
        self._slots_held += request.sampling.n
        if generation.on_end is None:
            self.buffer.open_attempt(key, request.attempt, generation.next_seq, request)
        self._empty.clear()

    def track_preparation(self, generation: Generation, task: asyncio.Task[None]) -> None:
        """Remembers the task that prepares a request, to be cancelled with it."""
        self._preparing[key := generation.key] = task

        def forget(done: asyncio.Task[None]) -> None:
            if self._preparing.get(key) is done:
                del self._preparing[key]

        task.add_done_callback(forget)

    def start_request(self, generation: Generation) -> None:
        """Gives the sequences of a prepared request to the scheduler, but for those that have ended."""
        scheduler = self._engine.scheduler
        assert scheduler is not None
        self._slots_held -= generation.request.sampling.n
        generation.started = True
        if generation.choices[0].prompt is not None:
            self.send_tokens(generation)
        for choice in generation.choices:
            if choice.finish_reason is None:
                generation.open_choices += 1
                self._arrivals += 1
                choice.sequence.enqueued_as(self._arrivals, first=generation.resumed)
                scheduler.add(choice.sequence)
        self._metrics.prompt_tokens.inc(generation.prompt_tokens)
        self._engine.work.set()
        if generation.open_choices == 0:  # a grammar forced its tokens, and ended the answer
            self.send_tokens(generation)
            self.finish_request(generation)

    def finish_request(self, generation: Generation) -> None:
        """Ends a request that has all its tokens: its turn is committed, then `Done` is sent."""
        try:
            self._finisher.finish_turn(generation, self.complete_request)
        except Exception:  # a bug in one request's record must not end the others
            log.exception("the turn was not finished", **generation.log_ids)
            if not generation.ended:
                self.complete_request(generation)

    def complete_request(self, generation: Generation) -> None:
        """Sends `Done`."""
        generation.timeline.mark("done")
        self.spans.end(generation)
        if generation.on_end is None:
            self._metrics.requests.labels("done").inc()
            self._metrics.requests_ended.count_end(generation, self._clock())
            self.counts.count_done()
            self._usage.write(generation)
        else:
            generation.on_end(None)
        self.publisher.send(generation, generation.done())
        self._remove(generation)

    def fail_request(self, generation: Generation, error: RyzError) -> None:
        """Sends the tokens that are not sent yet and `Failed`, and frees everything that the request has.

        A request that has all its tokens, and only waits for its session's record to be stored, is complete:
        a caller that got a failure would send the turn a second time.
        """
        if generation.ended:
            return
        if generation.has_all_tokens:
            self.complete_request(generation)
            return
        generation.timeline.mark("failed", {"code": error.code})
        self.spans.end(generation, error.code)
        self._count_failed(generation, error)
        try:
            self.send_tokens(generation)
        except Exception:  # they cannot be sent, which may be why it fails
            log.exception("no frame from tokens", **generation.log_ids)
        self.publisher.send(generation, generation.failed(error))
        self._remove(generation)

    def _count_failed(self, generation: Generation, error: RyzError) -> None:
        if generation.on_end is not None:
            generation.on_end(error)
            return
        now = self._clock()
        self._usage.write(generation, error)
        self._metrics.requests.labels(error.code).inc()
        self._metrics.faults.requests.labels(owner_of(error)).inc()
        self._metrics.requests_ended.count_end(generation, now, error.code)
        tenant, served = generation.request.tenant, bool(generation.first_token_at)
        self.counts.count_failed(error, tenant=tenant, served=served, now=now)
        if self.counts.wants_control:
            self.doubt.set()

    def send_tokens(self, generation: Generation) -> None:
        """Sends everything that the caller has not got yet."""
        for frame in generation.token_frames():
            self.publisher.send(generation, frame)

    def fail_all(self, error: RyzError) -> None:
        """Fails every request that has not ended. With `GroupLost` their callers resume them elsewhere."""
        for generation in list(self.by_key.values()):
            self.fail_request(generation, error)

    def supersede_attempt(self, key: str) -> None:
        """Drops an older attempt without a frame; its caller ignores frames of it."""
        generation = self.by_key.get(key)
        if generation is not None:
            generation.timeline.mark("superseded")
            self.spans.end(generation, "superseded")
            self._metrics.requests.labels("superseded").inc()
            generation.ended = True
            self.buffer.abandon_attempt(key, self._clock())
            self._remove(generation)

    def keys_of(self, tenant: str, request_id: str) -> list[str]:
        """Returns the keys of a tenant's request; without a tenant all that are known of that id."""
        return [request_key(tenant, request_id)] if tenant else self.buffer.keys(request_id)

    def cancel_request(
        self, request_id: str, reason: str, attempt: int = MAX_ATTEMPT, *, tenant: str = ""
    ) -> None:
        """Ends a request because its caller wants it, up to that attempt.

        A later attempt belongs to another caller, or is what the caller wants instead. A cancel of an unknown
        request is remembered, since it may have overtaken the request.
        """
        for key in self.keys_of(tenant, request_id) or [request_key("", request_id)]:
            generation, known = self.by_key.get(key), self.buffer.attempt(key)
            if generation is not None and generation.request.attempt <= attempt:
                if generation.request.call_key and generation.has_all_tokens:
                    continue  # a caller that repeats the call is to learn what became of its turn
                error = Cancelled(f"the request was cancelled: {reason or 'no reason given'}")
                self.fail_request(generation, error)
            elif generation is None and (known is None or known < attempt < MAX_ATTEMPT):
                whose = key.partition("/")[0]
                self._early_cancels.put(whose, request_id, attempt, self._clock())

    def was_cancelled(self, request: GenerateRequest) -> bool:
        """Returns whether a cancel came before the request; a cancel counts once."""
        return self._early_cancels.take(request.tenant, request.request_id, request.attempt, self._clock())

    def forget_expired(self) -> None:
        """Forgets cancels of unknown requests and retained frames that are too old."""
        now = self._clock()
        self.buffer.forget_expired(now)
        self._early_cancels.forget_expired(now)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Returns whether all requests ended within that time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._empty.is_set()

    def load(self) -> Load:
        """Returns how busy the group is; a request with n choices counts n times."""
        scheduler = self._engine.scheduler
        if scheduler is None:
            return Load(waiting=self._slots_held)
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + self._slots_held,
            max_running=scheduler.limits.max_running,
            max_waiting=scheduler.limits.max_waiting,
            free_blocks=scheduler.blocks.num_free,
            total_blocks=scheduler.blocks.num_used + scheduler.blocks.num_free,
            queued_tokens=scheduler.queued_tokens,
        )

    def _remove(self, generation: Generation) -> None:
        """Frees blocks, queue slots and tasks of a request that has ended."""
        if self.by_key.pop(generation.key, None) is None:
            return
        self._slots_held -= 0 if generation.started else generation.request.sampling.n
        if (task := self._preparing.pop(generation.key, None)) not in (None, asyncio.current_task()):
            task.cancel()
        if (scheduler := self._engine.scheduler) is not None:
            for choice in generation.choices:
                scheduler.end(choice.sequence)
        self._ownership.end_generation(generation)
        self._turns.leave_line(generation)
        self._running.end(generation)
        if not self.by_key:
            self._empty.set()
        self._engine.work.set()
