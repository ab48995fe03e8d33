"""The state machine that makes content blocks and their events from the parts of an answer. Pure.

Whatever the borders between parts, the blocks at the end are the same, and they are what the events say when
they are joined. One block is open at a time; a part of another kind, or of another call, closes it.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from shared.messages import AnswerPart, Delta, FinishReason, ReasoningPart, TextPart, ToolCallPart

Event = tuple[str, dict[str, Any]]  # its type and its fields
_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class ContentBlocks:
    """The content of one answer.

    Args:
        show_thinking: False: blocks of thinking are empty, as the caller asked.

    Attributes:
        blocks: The blocks so far; an open one is not complete.
        stop_reason: Why the answer ended; None before that.
        stop_sequence: The stop sequence that ended it; None if none did.
    """

    def __init__(self, *, show_thinking: bool = True) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self._show_thinking = show_thinking
        self._kind = ""  # of the open block; empty: none is open
        self._call = -1  # its index, if it is a call
        self._pieces: list[str] = []

    def take(self, delta: Delta) -> Iterator[Event]:
        """Takes new output; yields its events."""
        parts: Sequence[AnswerPart] = delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
        for part in parts:
            if isinstance(part, ToolCallPart):
                yield from self._take_call(part)
            elif part.text:
                yield from self._take_text(part)
        if delta.finish_reason is not None:
            yield from self._close()
            self.stop_reason = "stop_sequence" if delta.stop else _STOP_REASONS[delta.finish_reason]
            self.stop_sequence = delta.stop or None

    def _take_text(self, part: TextPart | ReasoningPart) -> Iterator[Event]:
        kind = "text" if isinstance(part, TextPart) else "thinking"
        if self._kind != kind:
            yield from self._close()
            block = {"type": "text", "text": ""}
            if kind == "thinking":
                block = {"type": "thinking", "thinking": "", "signature": ""}
            yield self._open(kind, block)
        self._pieces.append(part.text)
        if kind == "text":
            yield self._delta({"type": "text_delta", "text": part.text})
        elif self._show_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": part.text})

    def _take_call(self, part: ToolCallPart) -> Iterator[Event]:
        if self._kind != "tool_use" or self._call != part.index:
            yield from self._close()
            self._call = part.index
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
            yield self._open("tool_use", block)
        if part.arguments:
            self._pieces.append(part.arguments)
            yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def _open(self, kind: str, block: dict[str, Any]) -> Event:
        self._kind, self._pieces = kind, []
        self.blocks.append(block)
        return "content_block_start", {"index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": len(self.blocks) - 1, "delta": delta}

    def _close(self) -> Iterator[Event]:
        if not self._kind:
            return
        text, block = "".join(self._pieces), self.blocks[-1]
        if self._kind == "text":
            block["text"] = text
        elif self._kind == "tool_use":
            block["input"] = input_of(text)
        else:
            block["thinking"] = text if self._show_thinking else ""
            block["signature"] = _signature(text)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        self._kind, self._pieces = "", []
        yield "content_block_stop", {"index": len(self.blocks) - 1}


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
