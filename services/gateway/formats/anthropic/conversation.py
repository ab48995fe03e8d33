"""Turns Anthropic's system text and messages into messages of a conversation. Pure.

A message of the user may hold results of tools and text: the results become messages of their own, which come
first. Turns of the same role are joined, as in Anthropic's API.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from services.gateway.formats.anthropic.schema import MessageBody
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, ToolCall

MAX_BLOCKS = 4096  # of one message
_BETWEEN = "\n"  # blocks of a user's text
_NO_INPUT = {"image": "images", "document": "documents", "container_upload": "files"}


def conversation_of(messages: Sequence[MessageBody], system: Any, *, whole: bool) -> list[ChatMessage]:
    """The messages of a request. If the last one is the assistant's, the answer goes on from it.

    Args:
        messages: Of the body.
        system: Of the body.
        whole: The request has the whole conversation; else calls of tools may be in the session's history.

    Raises:
        InvalidRequest: A block is wrong, or of a type that the model has no input for; names its field.
    """
    builder = _Conversation(whole=whole)
    text = _joined(system, "system") if system else ""
    if text:
        builder.messages.append(ChatMessage(role="system", content=text))
    for index, message in enumerate(messages):
        builder.add(message, f"messages[{index}]")
    if builder.messages[-1].role == "assistant" and builder.messages[-1].tool_calls:
        raise InvalidRequest(
            "the last message calls tools: end with a message of the user that has their results",
            param=f"messages[{len(messages) - 1}].content",
        )
    return builder.messages


class _Conversation:
    def __init__(self, *, whole: bool) -> None:
        self.messages: list[ChatMessage] = []
        self._whole = whole
        self._calls: set[str] = set()

    def add(self, message: MessageBody, at: str) -> None:
        """Adds one message of the body."""
        blocks = _blocks(message.content, f"{at}.content")
        if message.role == "assistant":
            self._add_assistant(blocks, f"{at}.content")
        elif message.role == "system":
            self._push(ChatMessage(role="system", content=_joined(message.content, f"{at}.content")))
        else:
            self._add_user(blocks, f"{at}.content")

    def _add_user(self, blocks: Sequence[Mapping[str, Any]], at: str) -> None:
        texts: list[str] = []
        results = 0
        for index, block in enumerate(blocks):
            where = f"{at}[{index}]"
            if block.get("type") == "tool_result":
                self.messages.append(self._result(block, where))
                results += 1
            else:
                texts.append(_text_of(block, where))
        if texts or not results:
            self._push(ChatMessage(role="user", content=_BETWEEN.join(texts)))

    def _result(self, block: Mapping[str, Any], at: str) -> ChatMessage:
        call_id = _string(block, "tool_use_id", at)
        if self._whole and call_id not in self._calls:
            raise _wrong(
                f"{at}.tool_use_id",
                f"is the result of a call {call_id[:64]!r} that no message before it has made",
            )
        content = block.get("content")
        text = "" if content is None else _joined(content, f"{at}.content", _text_of_result)
        if block.get("is_error") is True:
            text = f"Error: {text}"
        return ChatMessage(role="tool", content=text, tool_call_id=call_id)

    def _add_assistant(self, blocks: Sequence[Mapping[str, Any]], at: str) -> None:
        text, reasoning, calls = "", "", list[ToolCall]()
        for index, block in enumerate(blocks):
            where, kind = f"{at}[{index}]", block.get("type")
            if kind == "thinking":
                reasoning += _string(block, "thinking", where, empty=True)
            elif kind == "tool_use":
                calls.append(_call(block, where))
            elif kind != "redacted_thinking":
                text += _text_of(block, where)
        for call in calls:
            if call.call_id in self._calls:
                raise _wrong(at, f"has two calls with the id {call.call_id[:64]!r}")
            self._calls.add(call.call_id)
        self._push(ChatMessage(role="assistant", content=text, reasoning=reasoning, tool_calls=calls))

    def _push(self, message: ChatMessage) -> None:
        """Appends a message, or joins it with the one before if both are the same role's."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != message.role:
            self.messages.append(message)
            return
        between = _BETWEEN if last.content and message.content else ""
        self.messages[-1] = msgspec.structs.replace(
            last,
            content=f"{last.content}{between}{message.content}",
            reasoning=last.reasoning + message.reasoning,
            tool_calls=[*last.tool_calls, *message.tool_calls],
        )


def _call(block: Mapping[str, Any], at: str) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict):
        raise _wrong(f"{at}.input", "must be an object")
    return ToolCall(
        call_id=_string(block, "id", at, max_length=256),
        name=_string(block, "name", at, max_length=128),
        arguments=msgspec.json.encode(given).decode(),
    )


def _blocks(content: Any, at: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _wrong(at, "must be a string or a list of content blocks")
    if len(content) > MAX_BLOCKS:
        raise _wrong(at, f"must have at most {MAX_BLOCKS} content blocks, got {len(content)}")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise _wrong(f"{at}[{index}]", "must be a content block, an object with `type`")
    return content


def _text_of(block: Mapping[str, Any], at: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return _string(block, "text", at, empty=True)
    if isinstance(kind, str) and kind in _NO_INPUT:
        raise _wrong(f"{at}.type", f"is {kind!r}, and the model has no input for {_NO_INPUT[kind]}")
    raise _wrong(f"{at}.type", f"is {str(kind)[:64]!r}: content blocks of this type are not served here")


def _text_of_result(block: Mapping[str, Any], at: str) -> str:
    if block.get("type") == "tool_reference":  # a search for tools found it; its definition is in `tools`
        return f"The tool {_string(block, 'tool_name', at, max_length=128)} can be called now."
    return _text_of(block, at)


def _joined(content: Any, at: str, read: Callable[[Mapping[str, Any], str], str] = _text_of) -> str:
    return _BETWEEN.join(read(block, f"{at}[{index}]") for index, block in enumerate(_blocks(content, at)))


def _string(block: Mapping[str, Any], name: str, at: str, *, empty: bool = False, max_length: int = 0) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _wrong(f"{at}.{name}", "must be a string")
    if not value and not empty:
        raise _wrong(f"{at}.{name}", "must not be empty")
    if max_length and len(value) > max_length:
        raise _wrong(f"{at}.{name}", f"must have at most {max_length} characters, got {len(value)}")
    return value


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
