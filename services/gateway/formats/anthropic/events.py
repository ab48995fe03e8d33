"""Answers of the Messages API: as bytes of server-sent events, and whole.

`ContentBlocks`: anthropic's content blocks and their events, made from the parts of an answer. Pure.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from pydantic_core import from_json

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.admission.errors.shapes import anthropic_body
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import StreamEvent
from services.gateway.formats.fields.answer_blocks import AnswerBlocks, Event
from shared.messages import (
    Accepted,
    AnswerPart,
    Delta,
    FinishReason,
    SessionOutcome,
    TextPart,
    ToolCallPart,
    Usage,
)
from shared.messages.answer_parts import Resumed

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
_COMMENT: StreamEvent = (b"ping", b"")  # clients expect no other event before `message_start`
_PING: StreamEvent = (b"ping", b'{"type":"ping"}')


class ContentBlocks(AnswerBlocks):
    """The content of one answer; see `AnswerBlocks`.

    Args:
        show_thinking: False: blocks of thinking are empty, as the caller asked.

    Attributes:
        stop_reason: Why the answer ended; None before that.
        stop_sequence: The stop sequence that ended it; None if none did.
    """

    def __init__(self, *, show_thinking: bool = True) -> None:
        super().__init__()
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self._show_thinking = show_thinking

    def take(self, delta: Delta) -> Iterator[Event]:
        """Takes new output; yields its events."""
        yield from self._take_parts(delta)
        if delta.finish_reason is not None:
            yield from self._close_open("completed")
            self.stop_reason = "stop_sequence" if delta.stop else _STOP_REASONS[delta.finish_reason]
            self.stop_sequence = delta.stop or None

    def _read(self, part: AnswerPart) -> tuple[str, str]:
        if isinstance(part, ToolCallPart):
            return "tool_use", part.arguments
        return "text" if isinstance(part, TextPart) else "thinking", part.text

    def _open(self, part: AnswerPart) -> Iterator[Event]:
        block: dict[str, Any] = {"type": "text", "text": ""}
        if isinstance(part, ToolCallPart):
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
        elif self._kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        self.blocks.append(block)
        yield "content_block_start", {"index": len(self.blocks) - 1, "content_block": dict(block)}

    def _add(self, piece: str) -> Iterator[Event]:
        if self._kind == "text":
            yield self._delta({"type": "text_delta", "text": piece})
        elif self._kind == "tool_use":
            yield self._delta({"type": "input_json_delta", "partial_json": piece})
        elif self._show_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": piece})

    def _close(self, text: str, status: str) -> Iterator[Event]:
        block = self.blocks[-1]
        if self._kind == "text":
            block["text"] = text
        elif self._kind == "tool_use":
            block["input"] = input_of(text)
        else:
            block["thinking"] = text if self._show_thinking else ""
            block["signature"] = _signature(text)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        yield "content_block_stop", {"index": len(self.blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": len(self.blocks) - 1, "delta": delta}


def input_of(arguments: str) -> dict[str, Any]:
    """The input of a call from the JSON text of its arguments.

    A text that was cut is read as far as it goes, as Anthropic's SDKs read the pieces of a stream.
    """
    try:
        value = from_json(arguments, allow_partial=True) if arguments else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _signature(thinking: str) -> str:
    """A text that clients send back with a block; it proves nothing and is not read."""
    return blake2b(thinking.encode(), digest_size=16).hexdigest()


class MessageEventWriter:
    """The events of one streamed message; see `EventWriter`.

    Args:
        envelope: Of the answer.
        show_thinking: See `ContentBlocks`.
        shown_id: The request's id as its caller sees it, for errors.
    """

    def __init__(self, envelope: Envelope, *, show_thinking: bool, shown_id: str) -> None:
        self._envelope = envelope
        self._shown_id = shown_id
        self._blocks = ContentBlocks(show_thinking=show_thinking)
        self._begun = False

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """Nothing: the beginning of a message has the tokens of its prompt, which are not counted yet."""
        return []

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """The beginning of the message, and a `ping`; once."""
        if self._begun:
            return []
        self._begun = True
        message = message_object(self._envelope, [], prompt, ContentBlocks())
        return _encoded([("message_start", {"message": message}), ("ping", {})])

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """The events of content blocks."""
        return _encoded([event for delta in deltas for event in self._blocks.take(delta)])

    def closing(
        self, usages: list[Usage], session: SessionOutcome | None = None, resumed: Resumed = ""
    ) -> list[StreamEvent]:
        """Why the message ended and its usage, and the end."""
        blocks = self._blocks
        end = {
            "stop_reason": blocks.stop_reason,
            "stop_sequence": blocks.stop_sequence,
            "stop_details": None,
            "container": None,
        }
        more = {"resumed": resumed} if resumed else {}
        events: list[Event] = [
            ("message_delta", {"delta": end, "usage": usage_of(usages[0]), **more}),
            ("message_stop", {}),
        ]
        return _encoded(events)

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventWriter`."""
        return b"error", anthropic_body(answer, self._shown_id)

    def ping(self) -> StreamEvent | None:
        """See `EventWriter`."""
        return _PING if self._begun else _COMMENT


def _encoded(events: Sequence[Event]) -> list[StreamEvent]:
    return [(kind.encode(), msgspec.json.encode({"type": kind, **fields})) for kind, fields in events]


def whole_message(
    envelope: Envelope, output: Delta, usage: Usage, *, show_thinking: bool, resumed: Resumed = ""
) -> bytes:
    """The body of a whole message, from the same translation of parts as a stream.

    Args:
        envelope: Of the answer.
        output: The whole output.
        usage: Its tokens.
        show_thinking: See `ContentBlocks`.
        resumed: As in `Done`.
    """
    blocks = ContentBlocks(show_thinking=show_thinking)
    for _ in blocks.take(output):
        pass
    message = message_object(envelope, blocks.blocks, usage, blocks)
    return msgspec.json.encode(message | {"resumed": resumed} if resumed else message)


def message_object(
    envelope: Envelope, content: list[dict[str, Any]], usage: Usage, blocks: ContentBlocks
) -> dict[str, Any]:
    """A message as Anthropic's clients read it."""
    return {
        "id": envelope.answer_id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": content,
        "stop_reason": blocks.stop_reason,
        "stop_sequence": blocks.stop_sequence,
        "stop_details": None,
        "container": None,
        "usage": usage_of(usage),
    }


def usage_of(usage: Usage) -> dict[str, Any]:
    """Token counts. The three counts of input add up to the prompt; `cached_tokens` is an addition."""
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.stored_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.stored_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
