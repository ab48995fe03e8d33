"""Streamed answers in OpenAI's shapes, as bytes of server-sent events.

One writer holds what never changes in a stream already encoded and puts only the text between. It keeps no
connection; `stream.py` sends what it makes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from services.gateway.errors import ErrorAnswer
from services.gateway.respond import Envelope, chat_logprobs, completion_logprobs, usage_of
from shared.messages import Delta, Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


def error_event(answer: ErrorAnswer) -> bytes:
    """A failure in mid-stream; no `[DONE]` follows it."""
    return b"data: " + answer.body + b"\n\n"


class ChunkWriter(Protocol):
    """Makes the events of one stream."""

    def opening(self) -> bytes:
        """The events before the first text; may be empty."""
        ...

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> bytes:
        """The events for new text of a prompt's choices."""
        ...

    def closing(self, usages: list[Usage]) -> bytes:
        """The events after the last text, `[DONE]` included."""
        ...


class _Writer:
    def __init__(self, envelope: Envelope, kind: str, *, n: int, usage: bool, logprobs: bool) -> None:
        self._envelope = envelope
        self._n = n
        self._usage = usage
        self._logprobs = logprobs
        head = _encode(envelope.head(kind))
        self._kind = kind
        self._prefix = b"data: " + head[:-1] + b',"choices":[{"index":'
        self._suffix = b'}],"usage":null}\n\n' if usage else b"}]}\n\n"

    def closing(self, usages: list[Usage]) -> bytes:
        if not self._usage:
            return DONE
        last: dict[str, Any] = self._envelope.head(self._kind) | {"choices": [], "usage": usage_of(usages)}
        return b"data: " + _encode(last) + b"\n\n" + DONE

    def _session(self) -> bytes:
        """The suffix of the stream's first chunk, which names the session."""
        if not self._envelope.session_id:
            return self._suffix
        return self._suffix[:-3] + b',"session_id":' + _encode(self._envelope.session_id) + b"}\n\n"


class ChatWriter(_Writer):
    """`chat.completion.chunk`: the role first, then text, then a chunk with the finish reason alone."""

    def __init__(self, envelope: Envelope, *, n: int, usage: bool, logprobs: bool) -> None:
        super().__init__(envelope, "chat.completion.chunk", n=n, usage=usage, logprobs=logprobs)
        self._plain_end = b'},"logprobs":null,"finish_reason":null' + self._suffix

    def opening(self) -> bytes:
        """A chunk with the role for each choice; the first of them names the session."""
        middle = (
            b',"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        )
        return b"".join(
            self._prefix + b"%d" % index + middle + (self._suffix if index else self._session())
            for index in range(self._n)
        )

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> bytes:
        """A chunk for each choice's text, and one for its end."""
        parts: list[bytes] = []
        for delta in deltas:
            start = self._prefix + b"%d" % (prompt * self._n + delta.choice)
            if delta.text or delta.logprobs:
                parts += (start, b',"delta":{"content":', _encode(delta.text), self._end(delta))
            if delta.finish_reason is not None:
                reason = delta.finish_reason.encode()
                parts += (
                    start,
                    b',"delta":{},"logprobs":null,"finish_reason":"',
                    reason,
                    b'"',
                    self._suffix,
                )
        return b"".join(parts)

    def _end(self, delta: Delta) -> bytes:
        if not self._logprobs or not delta.logprobs:
            return self._plain_end
        logprobs = _encode(chat_logprobs(delta.logprobs))
        return b'},"logprobs":' + logprobs + b',"finish_reason":null' + self._suffix


class CompletionWriter(_Writer):
    """`text_completion` chunks, with prompts' choices numbered through."""

    def __init__(self, envelope: Envelope, *, prompts: int, n: int, usage: bool, logprobs: bool) -> None:
        super().__init__(envelope, "text_completion", n=n, usage=usage, logprobs=logprobs)
        self._offsets = [0] * (prompts * n)
        self._first = True

    def opening(self) -> bytes:
        """Nothing: this shape has no role."""
        return b""

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> bytes:
        """A chunk for each choice's text; the last one of a choice has its finish reason."""
        parts: list[bytes] = []
        for delta in deltas:
            index = prompt * self._n + delta.choice
            if not delta.text and not delta.logprobs and delta.finish_reason is None:
                continue
            logprobs = b"null"
            if self._logprobs and delta.logprobs:
                logprobs = _encode(completion_logprobs(delta.logprobs, self._offsets[index]))
                self._offsets[index] += sum(len(entry.token) for entry in delta.logprobs)
            parts += (
                self._prefix + b"%d" % index,
                b',"text":',
                _encode(delta.text),
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                _encode(delta.finish_reason),
                self._session() if self._first else self._suffix,
            )
            self._first = False
        return b"".join(parts)
