"""A request that a leader has taken: its choices, and the numbered frames that its caller gets.

Makes frames and numbers them. The scheduler decides which tokens are computed when; `FramePublisher` sends
the frames, `RetransmitBuffer` keeps them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.errors import GroupLost, RyzError
from shared.messages import (
    Accepted,
    Adapter,
    Done,
    Failed,
    GenerateRequest,
    KVSource,
    SamplingDefaults,
    SessionOutcome,
    Tokens,
    Usage,
)
from shared.messages.generate import Resumed
from shared.telemetry.request_ids import log_ids
from shared.telemetry.timelines import UNRECORDED, RequestTimeline


def request_key(tenant: str, request_id: str) -> str:
    """Returns the leader's name for a request: ids are chosen by callers, and unique in a tenant only."""
    return f"{tenant}/{request_id}"


@dataclass(slots=True, eq=False)
class Generation:
    """A request that this leader has taken. Every frame made here has the next number.

    Times are on the leader's monotonic clock, in seconds.

    Attributes:
        request: As its caller sent it; another one after it was given to another caller.
        reply_to: Subject of its frames.
        deadline: When it fails if it has not ended.
        arrived: When it was taken.
        constraint: Makes the grammars of its choices; None if their form is free.
        choices: Its choices, once it is prepared.
        next_seq: Number of the next frame.
        prompt_tokens: Tokens of its prompt.
        prompt_sent: Whether the caller of a stream has the counts of the prompt.
        open_choices: Choices that go on.
        turn: Of its session; None without one.
        session_turns: Turns of the session before this one.
        session_version: Of the session before this turn; -1 until it is known.
        session: What `Done` reports of the session.
        started: Whether the scheduler has its sequences.
        computing_at: When it came into a step first; 0 before.
        first_token_at: When it got its first token; 0 before.
        last_token_at: When it got its newest tokens.
        last_flush_at: When tokens were sent last.
        ended: Whether its last frame was made.
        outside: Whether it came from an outside service, whose attempt numbers give it no precedence.
        timeline: When it passed the parts of the leader.
        traceparent: Its trace context, for what it leads to; empty without one.
        parent_span: The span of its caller if it is recorded in a trace, else empty.
        key: Its `request_key`.
        filled_in: The model's defaults of sampling that its request got, which `Accepted` reports; None:
            none.
        adapter: What it runs with beside the base; None: nothing.
        resumed_as: How it goes on with what earlier attempts brought, for `Accepted` and `Done`.
        on_end: Called with its error, or None, in place of all frames and counts: it is a control of the
            leader itself (`RequestCounts`). None for the requests of callers.
    """

    request: GenerateRequest
    reply_to: str
    deadline: float
    arrived: float
    constraint: ConstraintFactory | None = None
    choices: list[ChoiceState] = field(default_factory=list)
    next_seq: int = 0
    prompt_tokens: int = 0
    prompt_sent: bool = False
    open_choices: int = 0
    turn: TurnContext | None = None
    session_turns: int = 0
    session_version: int = -1
    session: SessionOutcome | None = None
    started: bool = False
    computing_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    last_flush_at: float = 0.0
    ended: bool = False
    outside: bool = False
    timeline: RequestTimeline = UNRECORDED
    traceparent: str = ""
    parent_span: str = ""
    key: str = ""
    filled_in: SamplingDefaults | None = None
    adapter: Adapter | None = None
    resumed_as: Resumed = ""
    on_end: Callable[[RyzError | None], None] | None = None

    def __post_init__(self) -> None:
        self.key = request_key(self.request.tenant, self.request.request_id)
        self.next_seq = self.request.resume.next_seq if self.request.resume else 0

    @property
    def log_ids(self) -> dict[str, str]:
        """The fields that name it in a log line."""
        return log_ids(self.request.request_id, self.traceparent)

    @property
    def resumed(self) -> bool:
        """Whether it was admitted before, as far as its caller is trusted: it gets in before others."""
        return self.request.attempt > 0 and not self.outside

    @property
    def has_all_tokens(self) -> bool:
        """Whether all its tokens are computed; its session's record may still be on its way."""
        return self.started and self.open_choices == 0

    @property
    def was_accepted(self) -> bool:
        """Whether the first frame was made."""
        return self.next_seq > (self.request.resume.next_seq if self.request.resume else 0)

    def accepted(
        self,
        group: str,
        reason: str,
        session_turns: int,
        *,
        kv: KVSource = "",
        instance_id: str = "",
        fingerprint: str = "",
    ) -> Accepted:
        """Returns the first frame."""
        request = self.request
        return Accepted(
            request_id=request.request_id,
            attempt=request.attempt,
            seq=self._number(),
            group=group,
            reason=reason,
            session_id=request.session.session_id if request.session else "",
            session_turns=session_turns,
            kv=kv,
            instance_id=instance_id,
            fingerprint=fingerprint,
            session_version=self.session_version,
            sampling=self.filled_in,
            resumed=self.resumed_as,
        )

    def tokens(self) -> Tokens | None:
        """Returns what the caller has not got yet as one frame; None if there is nothing.

        Answers about the prompt come first, in frames of their own; so there may be another frame.
        """
        choices = self.choices
        if choices and (prompt := choices[0].prompt) is not None and prompt.is_open:
            choices = choices[:1]
        deltas = [delta for choice in choices if (delta := choice.take_delta()) is not None]
        if not deltas:
            return None
        request = self.request
        counts: Usage | None = None
        if not self.prompt_sent and request.delivery == "stream":
            self.prompt_sent, counts = True, self._prompt_usage()
        return Tokens(
            request_id=request.request_id,
            attempt=request.attempt,
            seq=self._number(),
            deltas=deltas,
            prompt=counts,
        )

    def token_frames(self) -> Iterator[Tokens]:
        """Yields everything the caller has not got yet."""
        while (frame := self.tokens()) is not None:
            yield frame

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        return msgspec.structs.replace(
            self._prompt_usage(),
            completion_tokens=sum(choice.sequence.num_output for choice in self.choices),
            reasoning_tokens=sum(choice.answer.reasoning_tokens for choice in self.choices if choice.answer),
        )

    def _prompt_usage(self) -> Usage:
        """The counts of the prompt alone."""
        # of the first choice: the others find what it computed
        cached = self.choices[0].sequence.cached_tokens if self.choices else -1
        fetched = self.choices[0].sequence.fetched_tokens if self.choices else 0
        whole_blocks = self.prompt_tokens // BLOCK_SIZE * BLOCK_SIZE
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=min(self.prompt_tokens, max(0, cached)),
            fetched_tokens=min(self.prompt_tokens, fetched),
            stored_tokens=max(0, whole_blocks - cached) if cached >= 0 else 0,
        )

    def done(self) -> Done:
        """Returns the last frame of a request that completed."""
        self.ended = True
        request = self.request
        return Done(
            request_id=request.request_id,
            attempt=request.attempt,
            seq=self._number(),
            usage=self.usage,
            session=self.session,
            resumed=self.resumed_as,
        )

    def failed(self, error: RyzError) -> Failed:
        """Returns the last frame of a request that failed."""
        self.ended = True
        frame = failed_frame(self.request, error, self._number(), resumable=isinstance(error, GroupLost))
        return frame if frame.resumable else msgspec.structs.replace(frame, usage=self.usage)

    def _number(self) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq


def failed_frame(request: GenerateRequest, error: RyzError, seq: int, *, resumable: bool = False) -> Failed:
    """Returns an error as a frame; `resumable` if another group may go on with the request."""
    return Failed(
        request_id=request.request_id,
        attempt=request.attempt,
        seq=seq,
        code=error.code,
        message=error.message,
        data=error.data,
        resumable=resumable,
    )
