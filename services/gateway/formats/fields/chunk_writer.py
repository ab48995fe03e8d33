"""The base of the writers of streamed answers in OpenAI's formats, as JSON for the data of events.

A writer holds what never changes in a stream already encoded and puts only the text between. It keeps no
connection; transports send what it makes.
"""

from dataclasses import replace
from typing import Any, ClassVar, NotRequired, TypedDict, Unpack

import msgspec

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.answering.envelope import Envelope, fingerprint_of
from services.gateway.answering.events.ports import DONE, StreamEvent
from services.gateway.answering.resumption.resume_token import ResumeToken
from services.gateway.formats.fields.openai_answer import head_of, session_of, usage_of
from shared.codec import unpack_tokens
from shared.messages import Accepted, GenerateRequest, SessionOutcome, Usage
from shared.messages.answer_parts import Resumed

_encode = msgspec.json.encode


class ChunkOptions(TypedDict):
    """What a request asks of its chunks.

    Attributes:
        n: Choices of each prompt.
        usage: The last chunk has the usage.
        logprobs: Chunks have log probabilities.
        token_ids: Chunks have the ids of tokens.
    """

    n: int
    usage: bool
    logprobs: bool
    token_ids: NotRequired[bool]


def chunk_options(token: ResumeToken, request: GenerateRequest) -> ChunkOptions:
    """What a request asks of the chunks of its stream."""
    return ChunkOptions(
        n=request.sampling.n,
        usage=token.include_usage,
        logprobs=request.sampling.logprobs >= 0,
        token_ids=request.prompt_ids,
    )


class ChunkWriter:
    """Implements `EventWriter` but for the deltas.

    Args:
        envelope: The fields that each chunk begins with.
        options: What the request asks of its chunks.
    """

    _kind: ClassVar[str]
    _nothing: ClassVar[dict[str, Any]]  # a choice without text

    def __init__(self, envelope: Envelope, **options: Unpack[ChunkOptions]) -> None:
        self._token_ids = options.get("token_ids", False)
        self._n = options["n"]
        self._usage = usage = options["usage"]
        self._logprobs = options["logprobs"]
        self._set_envelope(envelope)
        self._suffix = b'}],"usage":null}' if usage else b"}]}"

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """See `EventWriter`; here nothing."""
        if accepted is not None:
            self._set_envelope(replace(self._envelope, fingerprint=fingerprint_of(accepted)))
        return []

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """See `EventWriter`; here nothing."""
        return []

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventWriter`; no `[DONE]` follows."""
        return b"", answer.body

    def ping(self) -> StreamEvent | None:
        """See `EventWriter`; OpenAI's streams have none."""
        return None

    def closing(
        self, usages: list[Usage], session: SessionOutcome | None = None, resumed: Resumed = ""
    ) -> list[StreamEvent]:
        """See `EventWriter`."""
        last: dict[str, Any] = {}
        if session is not None:
            last["session"] = session_of(session)
        if resumed:
            last["resumed"] = resumed
        if last:  # with an empty choice: many readers expect a first choice in each chunk
            last = {"choices": [self._nothing], **last}
        if self._usage:
            last = {**last, "choices": [], "usage": usage_of(usages)}
        if not last:
            return [DONE]
        return [(b"", _encode(self._head | last)), DONE]

    def _set_envelope(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._head = head_of(envelope, self._kind)
        self._prefix = _encode(self._head)[:-1] + b',"choices":[{"index":'

    def _tokens_field(self, name: bytes, packed: bytes) -> bytes:
        """A field with token ids, behind others; nothing if they were not asked for."""
        return b',"%b":%b' % (name, _encode(unpack_tokens(packed))) if self._token_ids else b""

    def _session(self) -> bytes:
        """The suffix of the first chunk of the stream, which names the session."""
        if not self._envelope.session_id:
            return self._suffix
        return self._suffix[:-1] + b',"session_id":' + _encode(self._envelope.session_id) + b"}"
