"""The port between calls and the formats of their bodies and answers.

A format translates: a body into a call, frames into events, completions into a whole answer. It keeps no
state between calls and knows no transport.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.gateway.admission.caller import Caller
from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.call import Call
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.idempotency import IdempotentCall
from services.gateway.answering.resume_token import AnswerKind, ResumeToken
from shared.client import Completion
from shared.messages import Accepted, Delta, GenerateRequest, SessionOutcome, Usage

# the type of an event (empty: it has none) and its data; without data it is a comment
StreamEvent = tuple[bytes, bytes]
DONE: StreamEvent = (b"", b"[DONE]")  # the last event of OpenAI's completions


class EventWriter(Protocol):
    """Makes the events of one stream from its frames, always the same ones; keeps no connection."""

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """The events before the first text, which belong to frame 0; may be empty.

        Args:
            accepted: The acceptance of the first generation; None for a stream that was joined later.
        """
        ...

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """The events, of frame 0 too, that have the counts of the prompt: before the first text, once."""
        ...

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """The events for new text of a prompt's choices, all from one frame."""
        ...

    def closing(self, usages: list[Usage], session: SessionOutcome | None = None) -> list[StreamEvent]:
        """The events after the last text, `[DONE]` included; they belong to the last frame.

        Args:
            usages: One for each generation.
            session: What became of the turn of a session.
        """
        ...

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """The last event of a stream that fails."""
        ...

    def ping(self) -> StreamEvent | None:
        """An event that only shows that the stream goes on, without an id; None: the format has none."""
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


Formats = Mapping[AnswerKind, Format]
