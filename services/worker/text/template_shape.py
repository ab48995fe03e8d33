"""In which shape a chat template takes messages: as `template_probes.py` finds it when a model is loaded.

Templates differ in what they read of a message. A template that is given another shape writes a prompt
without the text, and no error.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from msgspec.structs import replace

from services.worker.text.tool_prompt import in_words, parsed_arguments
from shared.messages import ChatMessage, ToolCall, ToolDefinition

_SHORT_IDS = re.compile(r"length\s*!=\s*9")  # Mistral's templates refuse other lengths
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateShape:
    """What a template reads of messages.

    Attributes:
        parts: Roles whose content is a list of parts, and not a text.
        arguments_as_text: The arguments of a call are JSON text, and not an object.
        null_content: A message that only has calls has null as its content, and not an empty text.
        calls_apart: Text and calls of a message are two messages, because the template writes only one.
        single_calls: Each call is a message of its own, followed by its result: the template takes one.
        own_tools: The template writes tools, calls and results itself; otherwise they are described in words.
        system: Which system messages are written: `any`, the `first` one of the conversation, only one at the
            `beginning`, `none`, or `refused` by the template.
            Where the template drops one in silence, it becomes part of the next user message.
    """

    parts: frozenset[str] = frozenset()
    arguments_as_text: bool = False
    null_content: bool = False
    calls_apart: bool = False
    single_calls: bool = False
    own_tools: bool = False
    system: Literal["any", "first", "beginning", "none", "refused"] = "any"


def template_messages(
    messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], shape: TemplateShape, source: str
) -> list[dict[str, Any]]:
    """Returns messages as a template expects them.

    Args:
        tools: Definitions of functions, which are described in words if the template does not write them.
    """
    if shape.system in ("first", "beginning", "none"):
        messages = _without_system(messages, shape.system)
    if not shape.own_tools:
        messages = in_words(messages, tools, system=shape.system not in ("none", "refused"))
    if shape.calls_apart:
        messages = [part for message in messages for part in _apart(message)]
    if shape.single_calls:
        messages = _one_by_one(messages)
    short = _has_short_ids(source)
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    return [_message_dict(message, names, shape, short=short) for message in messages]


def _without_system(messages: Sequence[ChatMessage], kept: str) -> list[ChatMessage]:
    """Returns messages with the texts of system messages in the next message of the user.

    Args:
        kept: Which one stays, in the words of `TemplateShape.system`.
    """
    made, texts, stays = list[ChatMessage](), list[str](), kept != "none"
    for index, message in enumerate(messages):
        if message.role in _SYSTEM and not (stays and (kept == "first" or not index)):
            texts.append(message.content)
        elif message.role == "user" and texts:
            made.append(replace(message, content="\n\n".join([*texts, message.content])))
            texts = []
        else:
            made.append(message)
            stays = stays and message.role not in _SYSTEM
    return [*made, ChatMessage(role="user", content="\n\n".join(texts))] if texts else made


def _apart(message: ChatMessage) -> list[ChatMessage]:
    if not message.tool_calls or not message.content:
        return [message]
    return [replace(message, tool_calls=[]), replace(message, content="", reasoning="")]


def _one_by_one(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns messages of at most one call; the results of a message's calls move behind theirs."""
    made, position = list[ChatMessage](), 0
    while position < len(messages):
        message, position = messages[position], position + 1
        if len(message.tool_calls) < 2:
            made.append(message)
            continue
        results = list[ChatMessage]()
        while position < len(messages) and messages[position].role == "tool":
            results.append(messages[position])
            position += 1
        for number, call in enumerate(message.tool_calls):
            first = message if not number else replace(message, content="", reasoning="")
            made.append(replace(first, tool_calls=[call]))
            made += [result for result in results if result.tool_call_id == call.call_id]
        known = {call.call_id for call in message.tool_calls}
        made += [result for result in results if result.tool_call_id not in known]
    return made


@lru_cache(maxsize=16)
def _has_short_ids(template: str) -> bool:
    return _SHORT_IDS.search(template) is not None


def _message_dict(
    message: ChatMessage, names: Mapping[str, str], shape: TemplateShape, *, short: bool
) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    content: Any = message.content
    if not content and message.tool_calls and shape.null_content:
        content = None
    elif role in shape.parts:
        content = [{"type": "text", "text": content}]
    plain: dict[str, Any] = {"role": role, "content": content}
    name = message.name or (names.get(message.tool_call_id, "") if role == "tool" else "")
    if name:
        plain["name"] = name
    if message.tool_call_id:
        plain["tool_call_id"] = _short_id(message.tool_call_id) if short else message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [_call_dict(call, shape, short=short) for call in message.tool_calls]
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
        if not (message.content and message.tool_calls):
            plain["thinking"] = message.reasoning
    return plain


def _call_dict(call: ToolCall, shape: TemplateShape, *, short: bool) -> dict[str, Any]:
    arguments = parsed_arguments(call)
    if shape.arguments_as_text and not isinstance(arguments, str):
        arguments = call.arguments or json.dumps(arguments)
    call_id = _short_id(call.call_id) if short else call.call_id
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _short_id(call_id: str) -> str:
    """Returns an id of nine letters and digits; one that has that form stays."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]
