"""Streamed chat completions, as JSON for the data of events."""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.source import StreamEvent
from services.gateway.formats.chat.message_parts import delta_of
from services.gateway.formats.chat.whole_answer import chat_logprobs
from services.gateway.formats.fields.chunk_writer import ChunkOptions, ChunkWriter
from services.gateway.formats.fields.custom_tools import CustomCalls
from shared.messages import Accepted, Delta

_encode = msgspec.json.encode


class ChatChunkWriter(ChunkWriter):
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
