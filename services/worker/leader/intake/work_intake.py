"""Takes work: decodes it, knows what it has taken before, accepts or refuses, and gets it to the scheduler.

Short requests go all the way at once; those that need a session record or a long text tokenized go on in a
task. Every request that is accepted ends in `RequestTable`.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

import structlog

from services.worker.domain.generation.request import Generation, failed_frame, request_key
from services.worker.domain.generation.turn_context import TurnContext, new_turn
from services.worker.leader.intake.sequence_builder import SequenceBuilder
from services.worker.leader.intake.waiting_places import WaitingPlaces
from services.worker.leader.kv_tier.kv_tier import KVTier
from services.worker.leader.request_table import RequestTable
from services.worker.leader.sessions.turn_lines import TurnLines
from services.worker.metrics import WorkerMetrics
from shared import codec
from shared.bus.api import Message
from shared.bus.endpoint import Endpoint
from shared.bus.subject import check_subject
from shared.errors import Cancelled, DeadlineExceeded, Internal, InvalidRequest, RyzError
from shared.messages import GenerateRequest, KVSource, Route, Work
from shared.subjects import HEADER_TIMEOUT

log = structlog.get_logger(__name__)

_MILLISECONDS = re.compile(r"-?[0-9]{1,15}")  # negative: the deadline has passed


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Times in seconds. A frame waits at most `accept_*_s` for company."""

    max_request_s: float = 600.0
    accept_stream_s: float = 0.002
    accept_whole_s: float = 0.015
    retry_after_s: float = 1.0


class Intake:
    """The handler of the group's work subject.

    refuse: why nothing is taken now (starting, draining, failed); None: it is.
    """

    def __init__(
        self,
        group: str,
        *,
        generations: RequestTable,
        preparer: SequenceBuilder,
        endpoint: Endpoint,
        kv_tier: KVTier,
        turns: TurnLines,
        metrics: WorkerMetrics,
        refuse: Callable[[], RyzError | None],
        limits: IntakeLimits,
        instance_id: str = "",
    ) -> None:
        self._group = group
        self._instance_id = instance_id
        self._generations = generations
        self._preparer = preparer
        self._endpoint = endpoint
        self._kv_tier = kv_tier
        self._turns = turns
        self._metrics = metrics
        self._refuse = refuse
        self._limits = limits
        self.places = WaitingPlaces(group, generations, metrics, limits.retry_after_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = log.bind()  # once: that costs more than a line that is not written
        self.taken = 0

    async def on_work(self, message: Message) -> None:
        """One `Work` message. Never waits; what takes longer becomes a task."""
        try:
            work = codec.decode(message.data, Work)
            check_subject(work.reply_to)  # a request that nobody can hear of is not begun
        except InvalidRequest as error:
            self.taken += 1
            await self._endpoint.refuse(message, error)
            return
        if work.instance_id and work.instance_id != self._instance_id:
            # a leader that was started again a moment ago, or that shares its name: if the one that is meant
            # is gone, the caller hears nothing, and offers the request again
            self._metrics.misdirected.labels("work").inc()
            return
        self.taken += 1
        try:
            request = codec.decode(work.request, GenerateRequest)
        except InvalidRequest as error:
            bare = _bare_request(work.request)
            if bare is None:
                await self._endpoint.refuse(message, error)
            else:
                self._metrics.bad_messages.labels("work").inc()
                self._generations.publisher.send_untracked(work.reply_to, failed_frame(bare, error, 0))
            return
        if not self._is_known(request, work):
            self._take(request, work, message.headers)

    async def close(self) -> None:
        """Waits for the tasks of requests that were failed or cancelled before."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _is_known(self, request: GenerateRequest, work: Work) -> bool:
        """Sends again what was sent, if this attempt is known; makes way for a newer one.

        A service outside gets the first frame alone, and asks for the others (`Resend`), which has a budget.
        """
        generations = self._generations
        key = request_key(request.tenant, request.request_id)
        known = generations.outbox.attempt(key)
        if known is None:
            return False
        if request.attempt > known:
            generations.supersede(key)
            return False
        self._metrics.duplicates.inc()
        if request.attempt == known:
            first = request.resume.next_seq if request.resume else 0
            frames = generations.outbox.resend(key, known, first).frames
            for frame in frames[:1] if work.outside else frames:
                generations.publisher.send_untracked(work.reply_to, frame)
        return True

    def _take(self, request: GenerateRequest, work: Work, headers: Mapping[str, str]) -> None:
        generations = self._generations
        try:
            timeout_s = self._timeout_s(headers)
            self._check_admission(request, timeout_s, resumed=request.attempt > 0 and not work.outside)
        except RyzError as error:
            self._metrics.requests.labels(error.code).inc()
            seq = request.resume.next_seq if request.resume else 0
            frame = failed_frame(request, error, seq, resumable=self._refuse() is not None)
            generations.publisher.send_untracked(work.reply_to, frame)
            return
        now = generations.clock()
        generation = Generation(
            request=request,
            reply_to=work.reply_to,
            deadline=now + timeout_s,
            arrived=now,
            last_flush_at=now,
            outside=work.outside,
        )
        generations.open(generation)
        if self._preparer.needs_lookup(request) or not self._preparer.is_short(request):
            self._in_background(generation, self._prepare(generation, work.route), work.route)
            return
        try:
            self._preparer.check(request)
            turn = self._new_turn(generation)
            tokens = self._preparer.tokenize(request, turn)
            if tokens is None:
                self._in_background(generation, self._prepare(generation, work.route), work.route)
                return
            self._preparer.build(generation, tokens, turn)
            kv = self._kv_tier.at_hand(generation)
            if kv is None:
                self._in_background(generation, self._kv_tier.find(generation), work.route)
            else:
                self._start(generation, work.route, kv)
        except Exception as error:  # whatever it is, the caller gets an answer
            self._accept(generation, work.route)
            self._fail(generation, error)

    def _check_admission(self, request: GenerateRequest, timeout_s: float, *, resumed: bool) -> None:
        refusal = self._refuse()
        if refusal is not None:
            raise refusal
        if self._generations.was_cancelled(request):
            raise Cancelled("the request was cancelled before it arrived")
        if timeout_s <= 0:
            raise DeadlineExceeded("the request's deadline had passed when it reached the group")
        self.places.make_room(request, resumed=resumed)

    def _in_background(
        self, generation: Generation, preparing: Coroutine[None, None, KVSource], route: Route
    ) -> None:
        task = asyncio.create_task(self._start_later(generation, preparing, route))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._generations.prepare_in_background(generation, task)

    async def _start_later(
        self, generation: Generation, preparing: Coroutine[None, None, KVSource], route: Route
    ) -> None:
        """Starts the generation when it is prepared; the caller hears soon that it was accepted."""
        prepared = asyncio.create_task(preparing)
        try:
            within_s = self._limits.accept_whole_s
            if self._preparer.needs_lookup(generation.request):
                within_s += self._turns.yield_s(generation)
            await asyncio.wait({prepared}, timeout=within_s)
            if not prepared.done():
                self._accept(generation, route, generation.session_turns)
            kv = await prepared
            self._start(generation, route, kv)
        except Exception as error:  # whatever it is, the caller gets an answer
            self._accept(generation, route)
            self._fail(generation, error)
        finally:
            prepared.cancel()

    async def _prepare(self, generation: Generation, route: Route) -> KVSource:
        """Looks up the history if there is any, makes tokens, and asks for their KV."""
        request, preparer = generation.request, self._preparer
        preparer.check(request)
        if preparer.needs_lookup(request):
            last_group = route.last_group if route.last_group != self._group else ""
            await self._turns.enter(generation)
            turn: TurnContext | None = await preparer.turn(request, last_group)
        else:
            turn = self._new_turn(generation)
        if turn is not None:
            generation.session_turns, generation.session_version = turn.number, turn.version
        short = preparer.is_short(request) and (turn is None or turn.record is None)
        tokens = preparer.tokenize(request, turn) if short else None
        if tokens is None:
            tokens = await preparer.tokenize_in_thread(request, turn)
        await preparer.build_later(generation, tokens, turn)
        return await self._kv_tier.find(generation)

    def _new_turn(self, generation: Generation) -> TurnContext | None:
        """The turn of a session whose id was made for it, so that no record has to be looked up."""
        self._turns.enter_now(generation)
        generation.session_version = 0
        return new_turn(generation.request)

    def _start(self, generation: Generation, route: Route, kv: KVSource) -> None:
        self._metrics.kv_sources.labels(kv or "unknown").inc()
        self._accept(generation, route, generation.session_turns, kv)
        self._log.debug("prompt taken", request_id=generation.request.request_id, route=route.reason, kv=kv)
        self._kv_tier.begin(generation)  # first: it may be over at once
        self._generations.start(generation)

    def _accept(
        self, generation: Generation, route: Route, session_turns: int = 0, kv: KVSource = ""
    ) -> None:
        """Sends the first frame, unless it was sent before or the request is over."""
        if generation.was_accepted or generation.ended:
            return
        whole = generation.request.delivery == "whole"
        within_s = self._limits.accept_whole_s if whole else self._limits.accept_stream_s
        frame = generation.accepted(
            self._group,
            route.reason,
            session_turns,
            kv=kv,
            instance_id=self._instance_id,
            fingerprint=self._preparer.fingerprint,
        )
        self._generations.publisher.send(generation, frame, within_s=within_s)

    def _fail(self, generation: Generation, error: Exception) -> None:
        if not isinstance(error, RyzError):
            log.error("request failed", request_id=generation.request.request_id, exc_info=error)
            error = Internal("the group could not prepare the request; its log says why")
        self._generations.fail(generation, error)

    def _timeout_s(self, headers: Mapping[str, str]) -> float:
        text = headers.get(HEADER_TIMEOUT)
        if text is None:
            return self._limits.max_request_s
        if not _MILLISECONDS.fullmatch(text):
            raise InvalidRequest(
                f"the header {HEADER_TIMEOUT} must be a number of milliseconds, got {text[:40]!r}",
                param=HEADER_TIMEOUT,
            )
        return min(int(text) / 1000, self._limits.max_request_s)


def _bare_request(data: bytes) -> GenerateRequest | None:
    """Just enough of a request that is wrong to answer it: its id and attempt; None without them."""
    raw = codec.fields_of(data)
    bare = {key: raw[key] for key in ("request_id", "attempt") if key in raw}
    try:
        return codec.convert(bare | {"model": "unknown"}, GenerateRequest)
    except InvalidRequest:
        return None
