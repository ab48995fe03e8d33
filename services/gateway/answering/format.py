"""The port between calls and the formats of their bodies and answers.

A format translates: a body into a call, frames into events, completions into a whole answer. It keeps no
state between calls and knows no transport.
"""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from services.gateway.admission.caller import Caller
from services.gateway.answering.call import Call
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.writer import EventWriter
from services.gateway.answering.resumption.resume_token import AnswerKind, ResumeToken
from shared.client import Completion
from shared.messages import GenerateRequest


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


class AnswerFormat(Format, Protocol):
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


AnswerFormats = Mapping[AnswerKind, AnswerFormat]
