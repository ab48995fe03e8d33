"""The answers of text completions: the chunks of a stream, a whole answer, and log probabilities in both."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import StreamEvent
from services.gateway.formats.fields.chunk_writer import ChunkOptions, ChunkWriter
from services.gateway.formats.fields.openai_answer import (
    LOWEST_LOGPROB,
    NOT_SHOWN,
    PromptShown,
    encode_answer,
    head_of,
    prompt_logprobs,
    shown_token,
)
from shared.client import Choice, Completion
from shared.codec import unpack_tokens
from shared.messages import Delta, FinishReason, TokenLogprob

_encode = msgspec.json.encode


class TextOffsets:
    """The places of an answer's tokens in its text, for the forms of text completions.

    A token is told once its first character is part of the text that was sent, since until then a stop string
    may take that away. At the end the others follow, at the end of the text: tokens of a stop string, and the
    one that ends a sequence.

    Args:
        start: Characters before the answer, of an echoed prompt.
    """

    def __init__(self, start: int = 0) -> None:
        self._length = start  # of the text that was sent
        self._start = start
        self._waiting: list[TokenLogprob] = []

    def add_prompt(self, text: str) -> None:
        """Counts text of an echoed prompt."""
        self._start += len(text)
        self._length += len(text)

    def take(
        self, text: str, entries: Sequence[TokenLogprob], *, ended: bool
    ) -> list[tuple[TokenLogprob, int]]:
        """Adds text and tokens; returns the tokens that are told now, with their places."""
        self._length += len(text)
        waiting = self._waiting = [*self._waiting, *entries]
        ready: list[tuple[TokenLogprob, int]] = []
        for entry in waiting:
            position = self._length if entry.offset < 0 else self._start + entry.offset
            if entry.offset >= 0 and position >= self._length and not ended:
                break
            ready.append((entry, min(position, self._length)))
        self._waiting = waiting[len(ready) :]
        return ready


def completion_logprobs(entries: Sequence[tuple[TokenLogprob, int]]) -> dict[str, Any]:
    """Log probabilities of a text completion: tokens with their places in the text."""
    return {
        "tokens": [shown_token(entry) for entry, _ in entries],
        "token_logprobs": [max(entry.logprob, LOWEST_LOGPROB) for entry, _ in entries],
        "top_logprobs": [_by_text(entry) for entry, _ in entries],
        "text_offset": [offset for _, offset in entries],
    }


def echoed_logprobs(entries: Sequence[TokenLogprob], *, first: bool = True) -> dict[str, Any]:
    """Log probabilities of tokens of an echoed prompt, in the form of a text completion's.

    Args:
        entries: Consecutive tokens of the prompt.
        first: They begin with the prompt's first token, which has none.
    """
    found = completion_logprobs([(entry, max(entry.offset, 0)) for entry in entries])
    if entries and first:
        found["token_logprobs"][0] = found["top_logprobs"][0] = None
    return found


def joined_logprobs(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The log probabilities of an echoed prompt and of the answer to it, as one object."""
    return {name: first[name] + second[name] for name in first}


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """The alternatives and the token itself; of several with one text the likeliest."""
    found: dict[str, float] = {}
    for one in entry.top:
        found.setdefault(shown_token(one), max(one.logprob, LOWEST_LOGPROB))
    found.setdefault(shown_token(entry), max(entry.logprob, LOWEST_LOGPROB))
    return found


def completion_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `text_completion`; one part for each prompt, their choices numbered through."""
    body = head_of(envelope, "text_completion")
    body["choices"] = [
        {"index": index, **fields}
        for index, fields in enumerate(
            _completion_choice(choice, part.choices[0], logprobs, shown)
            for part in parts
            for choice in part.choices
        )
    ]
    return encode_answer(body, envelope, parts)


def _completion_choice(choice: Choice, first: Choice, logprobs: bool, shown: PromptShown) -> dict[str, Any]:
    """One choice, with the fields of its prompt if they were asked for."""
    entries: dict[str, Any] | None = None
    if logprobs:
        offsets = TextOffsets(len(first.prompt_text))
        entries = completion_logprobs(offsets.take(choice.text, choice.logprobs, ended=True))
        if shown.echo:
            entries = joined_logprobs(echoed_logprobs(first.prompt_logprobs), entries)
    fields: dict[str, Any] = {
        "text": first.prompt_text + choice.text,
        "logprobs": entries,
        "finish_reason": choice.finish_reason,
    }
    if shown.prompt_logprobs:
        fields["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs)
    if shown.token_ids:
        fields |= {"prompt_token_ids": unpack_tokens(first.packed_prompt), "token_ids": choice.token_ids}
    return fields


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
