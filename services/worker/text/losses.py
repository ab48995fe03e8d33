"""Finds messages whose text a chat template has left out of a prompt.

A cheap search of the prompt comes first. A template may write a text in another form (as JSON, without its
reasoning), so what is not found there is looked for again with a marker in the place of each text.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from services.worker.text.tool_prompt import parsed_arguments
from shared.messages import ChatMessage, ToolCall

_MOST_LEAVES = 64  # of the arguments of a call


class Marker(NamedTuple):
    """A marker in the place of a text.

    Attributes:
        number: Of the message in the conversation.
    """

    text: str
    number: int
    what: str


def seems_whole(prompt: str, messages: Sequence[ChatMessage]) -> bool:
    """Returns whether the texts of all messages and calls are in a prompt, as they are or as JSON."""
    end = 0
    for message in messages:
        text = message.content.strip()
        if not text:
            continue
        found = prompt.find(text, end)
        if found >= 0:
            end = found + len(text)
        elif not _is_in(text, prompt):
            return False
    calls = [call for message in messages for call in message.tool_calls]
    return all(call.name in prompt and all(_is_in(leaf, prompt) for leaf in _leaves(call)) for call in calls)


def with_markers(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[Marker]]:
    """Returns the conversation with markers in the place of its texts, and what has to be in its prompt."""
    nonce, markers, marked = secrets.token_hex(6), list[Marker](), list[ChatMessage]()

    def mark(index: int, what: str) -> str:
        markers.append(Marker(f"q{nonce}x{len(markers)}q", index, what))
        return markers[-1].text

    for index, message in enumerate(messages):
        calls = list[ToolCall]()
        for call in message.tool_calls:
            markers.append(Marker(call.name, index, f"the call of {call.name!r}"))
            if parsed_arguments(call):
                value = mark(index, f"the arguments of the call of {call.name!r}")
                calls.append(replace(call, arguments=json.dumps({"value": value})))
            else:
                calls.append(call)
        content = message.content
        if content.strip():
            content = mark(index, f"the text of this message of role {message.role!r}")
        marked.append(replace(message, content=content, tool_calls=calls))
    return marked, markers


def _leaves(call: ToolCall) -> Iterator[str]:
    """Yields the first texts in the arguments of a call."""
    left: list[Any] = [parsed_arguments(call)]
    number = 0
    while left and number < _MOST_LEAVES:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and value.strip():
            number += 1
            yield value.strip()


def _is_in(text: str, prompt: str) -> bool:
    if text in prompt:
        return True
    return any(json.dumps(text, ensure_ascii=each)[1:-1] in prompt for each in (False, True))
