"""Takes work: decodes it, recognises what was taken before, and refuses or begins it.

Every request that is accepted ends in `RequestTable`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec

from services.worker.domain.generation.generation import Generation, failed_frame, request_key
from services.worker.leader.context import LeaderContext
from services.worker.leader.intake.preparation import Preparation
from services.worker.leader.intake.waiting_slots import WaitingSlots
from services.worker.leader.request_table import RequestTable
from shared import codec
from shared.bus.api import Message
from shared.bus.endpoint import Endpoint
from shared.bus.subject import check_subject
from shared.errors import InvalidRequest, RyzError
from shared.messages import GenerateRequest, SamplingDefaults, Work
from shared.subjects import HEADER_TIMEOUT
from shared.telemetry.request_ids import TRACE_PARENT, bind_request

_MILLISECONDS = re.compile(r"-?[0-9]{1,15}")  # negative: the deadline has passed


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Constants, in seconds.

    Attributes:
        max_request_s: For a request without a deadline, from its arrival to its end. Requests of gateways
            have one; a caller on the bus that needs longer sends its own.
        retry_after_s: When refused callers may try again.
    """

    max_request_s: float = 600.0
    retry_after_s: float = 1.0


class Intake:
    """The handler of the group's work subject."""

    def __init__(
        self,
        context: LeaderContext,
        endpoint: Endpoint,
        table: RequestTable,
        slots: WaitingSlots,
        preparation: Preparation,
        *,
        max_request_s: float,
        sampling: Callable[[], SamplingDefaults],
    ) -> None:
        self._instance_id = context.instance_id
        self._timelines = context.timelines
        self._metrics = context.metrics
        self._clock = context.clock
        self._endpoint = endpoint
        self._table = table
        self._slots = slots
        self._preparation = preparation
        self._max_request_s = max_request_s
        self._sampling = sampling

    def on_work(self, message: Message) -> Awaitable[None] | None:
        """Takes one `Work` message. What takes longer becomes a task.

        Returns:
            The refusal of a message that is none, to be awaited.
        """
        try:
            work = codec.decode(message.data, Work)
            check_subject(work.reply_to)  # a request whose frames cannot be sent is not begun
        except InvalidRequest as error:
            self._table.counts.count_taken()
            return self._endpoint.refuse(message, error)
        if work.instance_id and work.instance_id != self._instance_id:
            # addressed to another instance of this group, ignored; if that one is gone, the
            # caller gets no answer and offers the request again
            self._metrics.misdirected.labels("work").inc()
            return None
        self._table.counts.count_taken()
        try:
            request = codec.decode(work.request, GenerateRequest)
        except InvalidRequest as error:
            bare = _bare_request(work.request)
            if bare is None:
                return self._endpoint.refuse(message, error)
            self._metrics.bad_messages.labels("work").inc()
            self._table.publisher.send_untracked(work.reply_to, failed_frame(bare, error, 0))
            return None
        if not self._is_known(request, work):
            trace = self._table.spans.begin(message.headers.get(TRACE_PARENT, ""))
            with bind_request(request.request_id, trace[0]):
                self._take_request(request, work, message.headers, trace)
        return None

    def _is_known(self, request: GenerateRequest, work: Work) -> bool:
        """Sends frames again if this attempt is known; drops an older attempt.

        A service outside gets the first frame alone, and asks for the others (`Resend`), which has a budget.
        """
        table = self._table
        key = request_key(request.tenant, request.request_id)
        known = table.buffer.attempt(key)
        if known is None:
            return False
        if request.attempt > known:
            table.supersede_attempt(key)
            return False
        self._metrics.duplicates.inc()
        if request.attempt == known:
            first = request.resume.next_seq if request.resume else 0
            frames = table.buffer.frames_from(key, known, first).frames
            for frame in frames[:1] if work.outside else frames:
                table.publisher.send_untracked(work.reply_to, frame)
        return True

    def _take_request(
        self, request: GenerateRequest, work: Work, headers: Mapping[str, str], trace: tuple[str, str]
    ) -> None:
        table = self._table
        try:
            timeout_s = self._timeout_s(headers)
            self._slots.admit(request, timeout_s, resumed=request.attempt > 0 and not work.outside)
        except RyzError as error:
            self._metrics.requests.labels(error.code).inc()
            seq = request.resume.next_seq if request.resume else 0
            resumable = self._slots.gate.refusal() is not None
            table.publisher.send_untracked(
                work.reply_to, failed_frame(request, error, seq, resumable=resumable)
            )
            return
        now = self._clock()
        sampling, defaults = request.sampling, self._sampling()
        generation = Generation(
            request=msgspec.structs.replace(request, sampling=sampling.with_defaults(defaults)),
            reply_to=work.reply_to,
            deadline=now + timeout_s,
            arrived=now,
            last_flush_at=now,
            outside=work.outside,
            timeline=self._timelines.begin(request.request_id, request.attempt, traced=bool(trace[1])),
            traceparent=trace[0],
            parent_span=trace[1],
            filled_in=sampling.missing_of(defaults),
            adapter=work.adapter,
        )
        generation.timeline.mark("taken", {"group": work.route.group})
        table.open_request(generation)
        self._preparation.prepare_request(generation, work.route)

    def _timeout_s(self, headers: Mapping[str, str]) -> float:
        text = headers.get(HEADER_TIMEOUT)
        if text is None:
            return self._max_request_s
        if not _MILLISECONDS.fullmatch(text):
            raise InvalidRequest(
                f"the header {HEADER_TIMEOUT} must be a number of milliseconds, got {text[:40]!r}",
                param=HEADER_TIMEOUT,
            )
        return min(int(text) / 1000, self._max_request_s)


def _bare_request(data: bytes) -> GenerateRequest | None:
    """Returns a wrong request with nothing but its id and attempt, to be answered; None without them."""
    raw = codec.fields_of(data)
    bare = {key: raw[key] for key in ("request_id", "attempt") if key in raw}
    try:
        return codec.convert(bare | {"model": "unknown"}, GenerateRequest)
    except InvalidRequest:
        return None
