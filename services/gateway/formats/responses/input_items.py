"""Turns the items of responses into messages of a conversation. Pure.

Reads the items that clients send and those that our own answers had, since a client may send them back. The
assistant's reasoning, text and calls between two messages of others become one message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.gateway.formats.fields.custom_tools import arguments_of
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, Role, ToolCall

_ROLES: dict[object, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
CALLS = ("function_call", "custom_tool_call")
_NO_INPUT = {
    "input_image": "images",
    "input_file": "files",
    "input_audio": "audio",
    "image_url": "images",
    "file": "files",
}


@dataclass(slots=True)
class _AssistantDraft:
    """The parts of an assistant's message so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.content or self.reasoning or self.calls)


class ConversationBuilder:
    """Collects the messages of items, in their order.

    Attributes:
        messages: The messages so far; `finish` completes them.
    """

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._draft = _AssistantDraft()
        self._open_calls: set[str] = set()

    def add_text(self, text: str) -> None:
        """Adds a message of the user."""
        self._add(ChatMessage(role="user", content=text))

    def add_items(self, items: Iterable[Mapping[str, Any]], name: str = "input") -> None:
        """Adds items; `name` is the field that they come from.

        Raises:
            InvalidRequest: An item is wrong, or of a type that is not served; names its field.
        """
        for index, item in enumerate(items):
            self._add_item(item, f"{name}[{index}]")

    def finish(self) -> list[ChatMessage]:
        """Returns the messages of the whole conversation."""
        self._flush()
        return self.messages

    def _add_item(self, item: Mapping[str, Any], at: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._add_message(item, at)
        elif kind in CALLS:
            custom = kind == "custom_tool_call"
            call = ToolCall(
                call_id=_text(item, "call_id", at, 256),
                name=_text(item, "name", at, 128),
                arguments=arguments_of(_text(item, "input", at)) if custom else _text(item, "arguments", at),
            )
            self._draft.calls.append(call)
            self._open_calls.add(call.call_id)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_output(item, at)
        elif kind == "reasoning":
            self._add_reasoning(item, at)
        else:
            raise _wrong(
                f"{at}.type",
                "must be 'message', 'function_call', 'custom_tool_call', one of their outputs or "
                f"'reasoning', got {str(kind)[:64]!r}",
            )

    def _add_message(self, item: Mapping[str, Any], at: str) -> None:
        role = _ROLES.get(item.get("role")) if isinstance(item.get("role"), str) else None
        if role is None:
            raise _wrong(f"{at}.role", "must be 'user', 'assistant', 'system' or 'developer'")
        content = content_of(item.get("content"), f"{at}.content")
        if role != "assistant":
            self._add(ChatMessage(role=role, content=content))
            return
        if self._draft.content or self._draft.calls:
            self._flush()
        self._draft.content = content
        if not content:
            self._flush(even_empty=True)

    def _add_output(self, item: Mapping[str, Any], at: str) -> None:
        call_id = _text(item, "call_id", at, 256)
        if call_id not in self._open_calls:
            raise _wrong(
                f"{at}.call_id",
                f"is the result of a call {call_id[:64]!r} that the conversation does not have",
            )
        output = content_of(item.get("output"), f"{at}.output")
        self._add(ChatMessage(role="tool", content=output, tool_call_id=call_id))

    def _add_reasoning(self, item: Mapping[str, Any], at: str) -> None:
        if self._draft.content or self._draft.calls:
            self._flush()
        parts = item.get("content") or item.get("summary") or []
        if not isinstance(parts, list):
            raise _wrong(f"{at}.content", "must be a list of parts of type 'reasoning_text'")
        for index, part in enumerate(parts):
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(text, str):
                raise _wrong(f"{at}.content[{index}].text", "must be a string")
            self._draft.reasoning += text

    def _add(self, message: ChatMessage) -> None:
        self._flush()
        self.messages.append(message)

    def _flush(self, *, even_empty: bool = False) -> None:
        draft = self._draft
        if draft.empty and not even_empty:
            return
        self._draft = _AssistantDraft()
        self.messages.append(
            ChatMessage(
                role="assistant", content=draft.content, tool_calls=draft.calls, reasoning=draft.reasoning
            )
        )


def content_of(content: Any, at: str) -> str:
    """The text of a message or of a tool's result: a string, or a list of text parts, which are joined.

    Raises:
        InvalidRequest: It is neither, or has parts of another kind; names the field.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(at, "must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        where = f"{at}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _NO_INPUT:
            raise _wrong(f"{where}.type", f"is {kind!r}, and the model has no input for {_NO_INPUT[kind]}")
        if not isinstance(kind, str) or kind not in _TEXTS:
            raise _wrong(f"{where}.type", f"must be 'input_text' or 'output_text', got {str(kind)[:64]!r}")
        texts.append(_text(part, _TEXTS[kind], where))
    return "".join(texts)


def _text(item: Mapping[str, Any], name: str, at: str, max_length: int = 0) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(f"{at}.{name}", "must be a string")
    if max_length and not 1 <= len(value) <= max_length:
        raise _wrong(f"{at}.{name}", f"must have 1 to {max_length} characters, got {len(value)}")
    return value


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
