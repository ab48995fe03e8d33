"""What a call asks for, in typed form, and the port to the formats that make it and its answer.

A format translates: a body into a call, frames into events, completions into a whole answer. It keeps no
state between calls and knows no transport. `run_call.py` runs calls.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.gateway.admission.caller import Caller
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventSource, EventWriter, KeptAnswer
from services.gateway.answering.left_out import LeftOut
from services.gateway.answering.resumption.resume_token import AnswerKind, ResumeToken
from services.gateway.answering.running_call import RunningCall
from shared.client import Completion
from shared.messages import GenerateRequest


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Sessions and their conditions, seeds and priorities stand in `requests`; headers of the caller may still
    change its time limit (`run_call`). Most calls are answered by their generations as they run. Calls of
    other formats set `whole`, and if need be `events`, which then make the answer.

    Attributes:
        kind: Of its answer; names the format.
        request_id: The id of the call as it travels; that of its generation if it has one only.
        requests: One generation for each prompt; may be empty if `whole` is set.
        stream: The answer comes as events.
        include_usage: The events end with one about the usage.
        event_ids: The events of a stream carry ids.
        timeout_s: The time limit in the body; None if it has none.
        unknown_fields: Names of fields of the body that are not known; shortened if they are long.
        left_out: Parts of the body that are known and not served; callers see them with the unknown fields.
        format_data: More that the answer's format needs; see `ResumeToken`.
        field_names: The caller's names of fields of `GenerateRequest`, for errors of a leader that name one.
        asked_model: The model, if the call has no generations.
        slots: Slots that it holds; 0: one for each generation.
        kept: Makes the answer, and stores it before its end; its stream cannot be resumed. None: nothing
            does.
        whole: Makes the body of the answer; None: the generations do.
        events: Makes the events of the answer, if `whole` is set and the answer is streamed.
    """

    kind: AnswerKind
    request_id: str
    requests: list[GenerateRequest]
    stream: bool
    include_usage: bool = False
    event_ids: bool = False
    timeout_s: float | None = None
    unknown_fields: Sequence[str] = ()
    left_out: Sequence[LeftOut] = ()
    format_data: bytes = b""
    field_names: Mapping[str, str] = field(default_factory=dict)
    asked_model: str = ""
    slots: int = 0
    kept: KeptAnswer | None = None
    whole: "Callable[[StartedCall], Awaitable[bytes]] | None" = None
    events: "Callable[[StartedCall], EventSource] | None" = None

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return self.requests[0].model if self.requests else self.asked_model

    @property
    def session_id(self) -> str:
        """The session of the call; empty if it has none."""
        session = self.requests[0].session if self.requests else None
        return session.session_id if session else ""


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A call that was taken, for the functions that make its answer.

    Attributes:
        call: With the real name of its model, its priority and its party.
        running: The block in which it may be ended early.
        timeout_s: Seconds that it has.
    """

    call: Call
    caller: Caller
    running: RunningCall
    timeout_s: float


class Format(Protocol):
    """The format of one API's bodies.

    Attributes:
        kind: Chooses the format of an answer.
        path: The HTTP route; names the API in metrics and the log, for all transports.
    """

    kind: AnswerKind
    path: str

    def translate(self, raw: bytes, caller: Caller) -> Call | Awaitable[Call]:
        """Makes the call that a body and its headers ask for.

        Args:
            raw: The body.
            caller: Has ids, headers and the tenant.

        Returns:
            The call; something to be awaited if more than the body has to be read for it.

        Raises:
            RyzError: The call is refused, usually `InvalidRequest` with the name of a field.
        """
        ...


class FrameFormat(Format, Protocol):
    """The format of answers that are made of frames as they come, and whose streams can be resumed.

    Its `kind` stands in the tokens of its answers, and chooses the prefix of their ids (`resume_token.py`).
    """

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest]
    ) -> EventWriter:
        """The writer of a streamed answer.

        It depends on nothing else, so that another gateway resumes the stream with the same events. Only
        the token of a call with one generation travels.
        """
        ...

    async def encode_whole(
        self,
        envelope: Envelope,
        token: ResumeToken,
        requests: Sequence[GenerateRequest],
        parts: Sequence[Completion],
    ) -> bytes:
        """The body of a whole answer; `parts` has the end of each generation."""
        ...

    def needs_start(self, request: GenerateRequest) -> bool:
        """Returns whether events depend on earlier frames; then a stream is resumed while all are kept."""
        ...


AnswerFormats = Mapping[AnswerKind, FrameFormat]
