"""Streamed text completions, as JSON for the data of events."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.source import StreamEvent
from services.gateway.formats.fields.chunk_writer import ChunkOptions, ChunkWriter
from services.gateway.formats.text.logprobs import TextOffsets, completion_logprobs, echoed_logprobs
from shared.messages import Delta, FinishReason

_encode = msgspec.json.encode


class CompletionChunkWriter(ChunkWriter):
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
