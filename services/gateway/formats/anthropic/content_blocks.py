"""Anthropic's content blocks and their events, made from the parts of an answer. Pure."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from services.gateway.formats.fields.answer_blocks import AnswerBlocks, Event
from shared.messages import AnswerPart, Delta, FinishReason, TextPart, ToolCallPart

_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


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
