"""The port between the routes that generate and the formats of their bodies and answers.

A door translates: a body into generations, their deltas into events, their ends into a whole answer. It keeps
no state between calls. `generation_route.py` does the rest (keys, limits, repeated calls, sessions, streams).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.gateway.answering.envelope import Envelope, envelope_of
from services.gateway.answering.idempotency import IdempotentCall
from services.gateway.answering.left_out import LeftOut
from services.gateway.answering.resume_token import AnswerKind, ResumeToken
from services.gateway.http.serving_route import HttpExchange
from services.gateway.streams.event_writer import EventWriter
from shared.client import Completion
from shared.messages import GenerateRequest


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One call of a route that generates.

    Attributes:
        request_id: The id of the call as it travels; that of its generation if it has one only.
        requests: One generation for each prompt.
        stream: The answer comes as events.
        include_usage: The events end with one about the usage.
        event_ids: The events of a stream carry ids.
        timeout_s: The time limit in the body; None if it has none.
        unknown_fields: Names of fields of the body that are not known; shortened if they are long.
        left_out: Parts of the body that are known and not served; callers see them with the unknown fields.
        door_data: More that the answer's format needs; see `ResumeToken`.
        field_names: The caller's names of fields of `GenerateRequest`, for errors of a leader that name one.
    """

    request_id: str
    requests: list[GenerateRequest]
    stream: bool
    include_usage: bool = False
    event_ids: bool = False
    timeout_s: float | None = None
    unknown_fields: Sequence[str] = ()
    left_out: Sequence[LeftOut] = ()
    door_data: bytes = b""
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


class Door(Protocol):
    """The formats of one route.

    Attributes:
        kind: Stands in the tokens of its answers, and chooses the prefix of their ids (`resume_token.py`).
        path: The route.
    """

    kind: AnswerKind
    path: str

    async def translate(
        self, raw: bytes, exchange: HttpExchange, once: IdempotentCall | None
    ) -> GenerationCall:
        """Makes the call that a body and its headers ask for.

        Args:
            raw: The body.
            exchange: The request: ids, headers, tenant. Headers for every answer may be added to its reply.
            once: What its `Idempotency-Key` says, if it has one.

        Raises:
            RyzError: The call is refused, usually `InvalidRequest` with the name of a field.
        """
        ...

    def writer(
        self, envelope: Envelope, token: ResumeToken, requests: Sequence[GenerateRequest], *, ids: bool
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


class DoorFormats:
    """The formats of streams by their tokens; implements `StreamFormats`."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self._doors = {door.kind: door for door in doors}

    def writer(self, token: ResumeToken, request: GenerateRequest) -> EventWriter | None:
        """See `StreamFormats`."""
        door = self._doors.get(token.kind)
        return None if door is None else door.writer(envelope_of(token, request), token, [request], ids=True)

    def needs_start(self, token: ResumeToken, request: GenerateRequest) -> bool:
        """See `StreamFormats`."""
        return self._doors[token.kind].needs_start(request)
