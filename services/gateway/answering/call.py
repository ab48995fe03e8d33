"""What a call asks for, in typed form: made by a format, run by `run_call.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.gateway.answering.resume_token import AnswerKind
from services.gateway.field_policy.left_out import LeftOut
from shared.messages import GenerateRequest


@dataclass(frozen=True, slots=True)
class Call:
    """One call that generates.

    Sessions and their conditions, seeds and priorities stand in `requests`; headers of the caller may still
    change its time limit (`run_call`).

    Attributes:
        kind: Of its answer; names the format.
        request_id: The id of the call as it travels; that of its generation if it has one only.
        requests: One generation for each prompt.
        stream: The answer comes as events.
        include_usage: The events end with one about the usage.
        event_ids: The events of a stream carry ids.
        timeout_s: The time limit in the body; None if it has none.
        unknown_fields: Names of fields of the body that are not known; shortened if they are long.
        left_out: Parts of the body that are known and not served; callers see them with the unknown fields.
        format_data: More that the answer's format needs; see `ResumeToken`.
        field_names: The caller's names of fields of `GenerateRequest`, for errors of a leader that name one.
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

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return self.requests[0].model

    @property
    def session_id(self) -> str:
        """The session of the call; empty if it has none."""
        session = self.requests[0].session
        return session.session_id if session else ""
