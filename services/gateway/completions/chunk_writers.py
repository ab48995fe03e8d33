"""Streamed answers in OpenAI's formats, as JSON for the data of events.

Each writer holds what never changes in a stream already encoded and puts only the text between. It keeps no
connection; transports send what it makes.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NotRequired, TypedDict, Unpack

import msgspec

from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.envelope import Envelope, fingerprint_of
from services.gateway.answering.event_source import DONE, StreamEvent
from services.gateway.completions.logprob_forms import TextOffsets, completion_logprobs, echoed_logprobs
from services.gateway.completions.message_parts import delta_of
from services.gateway.completions.whole_responses import (
    chat_logprobs,
    head_of,
    session_of,
    usage_of,
)
from services.gateway.field_policy.custom_tools import CustomCalls
from shared.codec import unpack_tokens
from shared.messages import Accepted, Delta, FinishReason, SessionOutcome, Usage

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


class _ChunkWriter:
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

    def closing(self, usages: list[Usage], session: SessionOutcome | None = None) -> list[StreamEvent]:
        """See `EventWriter`."""
        last: dict[str, Any] = {}
        if session is not None:
            # with an empty choice: many readers expect a first choice in each chunk
            last = {"choices": [self._nothing], "session": session_of(session)}
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


class ChatChunkWriter(_ChunkWriter):
    """`chat.completion.chunk`: the role first, then text, then a chunk with the finish reason alone."""

    _kind: ClassVar[str] = "chat.completion.chunk"
    _nothing: ClassVar[dict[str, Any]] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}

    def __init__(
        self, envelope: Envelope, *, custom: Collection[str] = (), **options: Unpack[ChunkOptions]
    ) -> None:
        super().__init__(envelope, **options)
        self._custom = CustomCalls(custom)
        self._plain_end = b'},"logprobs":null,"finish_reason":null' + self._suffix

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """A chunk with the role for each choice; the first of them names the session."""
        super().opening(accepted)
        middle = (
            b',"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        )
        return [
            (b"", self._prefix + b"%d" % index + middle + (self._suffix if index else self._session()))
            for index in range(self._n)
        ]

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """A chunk for each part of a choice's text, calls and reasoning, and one for its end.

        The first chunk of a delta has its log probabilities.
        """
        events: list[StreamEvent] = []
        for delta in deltas:
            start = self._prefix + b"%d" % (prompt * self._n + delta.choice)
            if delta.prompt_token_ids:
                prompt_ids = self._tokens_field(b"prompt_token_ids", delta.prompt_token_ids)
                head = b',"delta":{},"logprobs":null,"finish_reason":null}]' + prompt_ids
                events.append((b"", start + head + self._suffix[2:]))
            if delta.parts:
                for index, part in enumerate(delta.parts):
                    end = self._plain_end if index else self._end(delta)
                    made = delta_of(part, self._custom, delta.choice)
                    events.append((b"", start + b',"delta":' + _encode(made)[:-1] + end))
            elif delta.text or delta.logprobs or (self._token_ids and delta.token_ids):
                text = start + b',"delta":{"content":' + _encode(delta.text) + self._end(delta)
                events.append((b"", text))
            if delta.finish_reason is not None:
                reason = delta.finish_reason.encode()
                middle = b',"delta":{},"logprobs":null,"finish_reason":"'
                events.append((b"", start + middle + reason + b'"' + self._suffix))
        return events

    def _end(self, delta: Delta) -> bytes:
        ids = self._tokens_field(b"token_ids", delta.token_ids)
        if not self._logprobs or not delta.logprobs:
            return b'},"logprobs":null,"finish_reason":null' + ids + self._suffix if ids else self._plain_end
        logprobs = _encode(chat_logprobs(delta.logprobs))
        return b'},"logprobs":' + logprobs + b',"finish_reason":null' + ids + self._suffix


class CompletionChunkWriter(_ChunkWriter):
    """`text_completion` chunks, with prompts' choices numbered through."""

    _kind: ClassVar[str] = "text_completion"
    _nothing: ClassVar[dict[str, Any]] = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}

    def __init__(self, envelope: Envelope, *, prompts: int, **options: Unpack[ChunkOptions]) -> None:
        super().__init__(envelope, **options)
        self._offsets = [TextOffsets() for _ in range(prompts * self._n)]
        self._scored = [False] * (prompts * self._n)
        self._first = True

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """A chunk for each choice's text; the last one of a choice has its finish reason."""
        events: list[StreamEvent] = []
        for delta in deltas:
            choices = range(prompt * self._n, (prompt + 1) * self._n)
            if delta.prompt_text or delta.prompt_logprobs:
                for index in choices:
                    self._offsets[index].add_prompt(delta.prompt_text)
                    events.append(self._event(index, delta.prompt_text, self._echoed(index, delta)))
            if self._token_ids and delta.prompt_token_ids:
                shown = self._tokens_field(b"prompt_token_ids", delta.prompt_token_ids)
                events += [self._event(index, "", b"null", more=shown) for index in choices]
            ids = self._tokens_field(b"token_ids", delta.token_ids) if delta.token_ids else b""
            if not delta.text and not delta.logprobs and delta.finish_reason is None and not ids:
                continue
            index = prompt * self._n + delta.choice
            logprobs = b"null"
            if self._logprobs:
                ended = delta.finish_reason is not None
                entries = self._offsets[index].take(delta.text, delta.logprobs, ended=ended)
                if not entries and not delta.text and not ended and not ids:
                    continue  # tokens whose text is not clear yet
                logprobs = _encode(completion_logprobs(entries)) if entries else b"null"
            events.append(self._event(index, delta.text, logprobs, delta.finish_reason, ids))
        return events

    def _event(
        self,
        index: int,
        text: str,
        logprobs: bytes,
        finish: FinishReason | None = None,
        more: bytes = b"",
    ) -> StreamEvent:
        suffix = self._session() if self._first else self._suffix
        self._first = False
        return b"", b"".join(
            (
                self._prefix + b"%d" % index,
                b',"text":',
                _encode(text),
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                _encode(finish),
                more,
                suffix,
            )
        )

    def _echoed(self, index: int, delta: Delta) -> bytes:
        """Log probabilities of the prompt for one of its choices."""
        entries = delta.prompt_logprobs
        if not self._logprobs or not entries:
            return b"null"
        found = echoed_logprobs(entries, first=not self._scored[index])
        self._scored[index] = True
        return _encode(found)
