"""What a call asks for, in typed form: made by a format, run by `run_call.py`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.gateway.admission.caller import Caller
from services.gateway.answering.events.kept_answer import KeptAnswer
from services.gateway.answering.events.source import EventSource
from services.gateway.answering.left_out import LeftOut
from services.gateway.answering.resumption.resume_token import AnswerKind
from services.gateway.answering.running_call import RunningCall
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
