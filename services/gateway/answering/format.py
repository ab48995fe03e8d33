"""The port between calls and the formats of their bodies and answers.

A format translates: a body into a call, frames into events, completions into a whole answer. It keeps no state
between calls and knows no transport.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.gateway.admission.caller import Caller
from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.call import Call
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.event_ids import UNNUMBERED
from services.gateway.answering.idempotency import IdempotentCall
from services.gateway.answering.resume_token import AnswerKind, ResumeToken
from shared.client import Completion
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Usage


class EventWriter(Protocol):
    """Makes the events of one stream from its frames, always the same ones; keeps no connection."""

    def opening(self, accepted: Accepted | None = None) -> bytes:
        """The events before the first text, which belong to frame 0; may be empty.

        Args:
            accepted: The acceptance of the first generation; None for a stream that was joined later.
        """
        ...

    def begin(self, prompt: Usage) -> bytes:
        """The events, of frame 0 too, that have the counts of the prompt; made before the first text."""
        ...

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0, seq: int = UNNUMBERED) -> bytes:
        """The events for new text of a prompt's choices, from frame number `seq`."""
        ...

    def closing(
        self, usages: list[Usage], seq: int = UNNUMBERED, session: SessionOutcome | None = None
    ) -> bytes:
        """The events after the last text, `[DONE]` included.

        Args:
            usages: One for each generation.
            seq: The number of the last frame.
            session: What became of the turn of a session.
        """
        ...

    def failure(self, answer: ErrorAnswer) -> bytes:
        """The last event of a stream that fails."""
        ...

    def ping(self) -> bytes:
        """An event that only shows that the stream goes on, without an id; empty: the format has none."""
        ...


class Format(Protocol):
    """The format of one API's bodies and answers.

    Attributes:
        kind: Stands in the tokens of its answers, and chooses the prefix of their ids (`resume_token.py`).
        path: The HTTP route; names the API in metrics and the log, for all transports.
    """

    kind: AnswerKind
    path: str

    async def translate(self, raw: bytes, caller: Caller, once: IdempotentCall | None) -> Call:
        """Makes the call that a body and its headers ask for.

        Args:
            raw: The body.
            caller: Has ids, headers and the tenant.
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


Formats = Mapping[AnswerKind, Format]
