"""The answers of chat completions: chunks of a stream, a whole answer, and the parts of messages in both.

`delta_of`: turns the parts of an answer into fields of chat messages. Pure.

A stream sends what `delta_of` makes of each part; a whole message is those deltas folded together, so both
come from the same translation.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Unpack

import msgspec

from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import StreamEvent
from services.gateway.formats.fields.chunk_writer import ChunkOptions, ChunkWriter
from services.gateway.formats.fields.custom_tools import CustomCalls
from services.gateway.formats.fields.openai_answer import (
    NOT_SHOWN,
    PromptShown,
    encode_answer,
    head_of,
    prompt_logprobs,
    token_fields,
)
from shared.client import Choice, Completion
from shared.codec import unpack_tokens
from shared.messages import Accepted, AnswerPart, Delta, ReasoningPart, TextPart, TokenLogprob

_encode = msgspec.json.encode


def delta_of(part: AnswerPart, custom: CustomCalls | None = None, choice: int = 0) -> dict[str, Any]:
    """The field `delta` of the chunk that brings a part.

    Args:
        part: Of an answer.
        custom: Knows calls of custom tools by their earlier parts; None: the request has no such tools.
        choice: The answer's choice.
    """
    if isinstance(part, TextPart):
        return {"content": part.text}
    if isinstance(part, ReasoningPart):
        # vLLM's and DeepSeek's word for it
        return {"reasoning": part.text, "reasoning_content": part.text}
    call: dict[str, Any] = {"index": part.index}
    text = custom.input_of(part, choice) if custom else None
    if text is not None:
        called = {"input": text}
        if part.call_id:
            call |= {"id": part.call_id, "type": "custom"}
            called = {"name": part.name, **called}
        return {"tool_calls": [call | {"custom": called}]}
    function = {"arguments": part.arguments}
    if part.call_id:
        call |= {"id": part.call_id, "type": "function"}
        function = {"name": part.name, **function}
    return {"tool_calls": [call | {"function": function}]}


def message_of(parts: Sequence[AnswerPart], custom: Collection[str] = ()) -> dict[str, Any]:
    """The whole message of an assistant; its content is null if it only calls tools.

    Args:
        parts: The whole answer.
        custom: Names of the request's custom tools.
    """
    if len(parts) == 1 and isinstance(parts[0], TextPart):  # as most are; the same as below
        return {"role": "assistant", "content": parts[0].text, "refusal": None}
    calls = CustomCalls(custom)
    return fold_deltas(delta_of(part, calls) for part in parts)


def fold_deltas(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that the deltas of a choice make together."""
    texts: dict[str, list[str]] = {"content": [], "reasoning": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        for field, pieces in texts.items():
            if field in delta:
                pieces.append(delta[field])
        for piece in delta.get("tool_calls", ()):
            index = piece["index"]
            if "id" in piece:
                kind = piece["type"]
                calls[index] = {"id": piece["id"], "type": kind, kind: {"name": piece[kind]["name"]}}
            text = piece["custom"]["input"] if "custom" in piece else piece["function"]["arguments"]
            arguments.setdefault(index, []).append(text)
    joined = {field: "".join(pieces) for field, pieces in texts.items()}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not joined["content"] else joined["content"],
        "refusal": None,
    }
    message |= {field: joined[field] for field in ("reasoning", "reasoning_content") if joined[field]}
    if calls:
        for index, call in calls.items():
            field = "input" if call["type"] == "custom" else "arguments"
            call[call["type"]][field] = "".join(arguments[index])
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def chat_logprobs(entries: Sequence[TokenLogprob]) -> msgspec.Raw:
    """Log probabilities of a chat answer, encoded: as objects they would take ten times the memory."""
    content = b",".join(
        msgspec.json.encode(token_fields(entry) | {"top_logprobs": [token_fields(top) for top in entry.top]})
        for entry in entries
    )
    return msgspec.Raw(b'{"content":[' + content + b'],"refusal":null}')


def chat_body(
    envelope: Envelope, parts: Sequence[Completion], logprobs: bool, *, shown: PromptShown = NOT_SHOWN
) -> bytes:
    """A `chat.completion`; there is one part."""
    body = head_of(envelope, "chat.completion")
    body["choices"] = [
        {
            "index": index,
            "message": message_of(choice.parts or [TextPart(text=choice.text)], shown.custom),
            "logprobs": chat_logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
            **({"token_ids": choice.token_ids} if shown.token_ids else {}),
        }
        for index, choice in enumerate(_choices(parts))
    ]
    if shown.prompt_logprobs:
        body["prompt_logprobs"] = prompt_logprobs(parts[0].choices[0].prompt_logprobs)
    if shown.token_ids:
        body["prompt_token_ids"] = unpack_tokens(parts[0].choices[0].packed_prompt)
    return encode_answer(body, envelope, parts)


def _choices(parts: Sequence[Completion]) -> list[Choice]:
    """The choices of all prompts, in the order of the prompts."""
    return parts[0].choices if len(parts) == 1 else [choice for part in parts for choice in part.choices]


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
