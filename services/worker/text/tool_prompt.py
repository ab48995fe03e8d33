"""What chat templates are given for tools: definitions and messages in the shape that transformers defines.

A template that knows no tools gets them in words: the definitions in the system message, calls and results as
text of the messages (the Hermes form).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from shared.messages import ChatMessage, ToolCall, ToolDefinition

_TOOLS = re.compile(r"\btools\b")
_INTRODUCTION = """# Tools

You may call functions to help with the user's request. Each line between these tags describes one:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as a JSON object between these tags, once for each call:
<tool_call>
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """What a template gets beside the messages.

    Attributes:
        variables: More variables, by name.
    """

    tools: Sequence[ToolDefinition] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)


NOTHING = TemplateInput()


@lru_cache(maxsize=16)
def knows_tools(template: str) -> bool:
    """Returns whether a template writes tools itself."""
    return _TOOLS.search(template) is not None


def parameters_of(tool: ToolDefinition) -> dict[str, Any]:
    """Returns the schema of a function's arguments. Raises `ValueError` if it is no JSON object."""
    if not tool.parameters:
        return {"type": "object", "properties": {}}
    try:
        schema = json.loads(tool.parameters)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(schema, dict):
        raise ValueError("no JSON object")
    return schema


def tool_dict(tool: ToolDefinition) -> dict[str, Any]:
    """Returns a definition in OpenAI's shape."""
    function = {"name": tool.name, "description": tool.description, "parameters": parameters_of(tool)}
    return {"type": "function", "function": function}


def in_words(
    messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], *, system: bool = True
) -> list[ChatMessage]:
    """Returns messages for a template that knows no tools.

    Args:
        system: The template takes a system message; otherwise the first message of the user describes tools.
    """
    rendered: list[ChatMessage] = []
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if (
                rendered
                and rendered[-1].role == "user"
                and rendered[-1].content.startswith("<tool_response>")
            ):
                rendered[-1] = replace(rendered[-1], content=f"{rendered[-1].content}\n{text}")
            else:
                rendered.append(ChatMessage(role="user", content=text))
        elif message.tool_calls:
            calls = "\n".join(f"<tool_call>\n{_call_text(call)}\n</tool_call>" for call in message.tool_calls)
            content = f"{message.content}\n{calls}" if message.content else calls
            rendered.append(replace(message, content=content, tool_calls=[]))
        else:
            rendered.append(message)
    if not tools:
        return rendered
    lines = "\n".join(json.dumps(tool_dict(tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    if rendered and rendered[0].role in ("system", "developer"):
        return [replace(rendered[0], content=f"{rendered[0].content}\n\n{text}"), *rendered[1:]]
    if system:
        return [ChatMessage(role="system", content=text), *rendered]
    if rendered and rendered[0].role == "user":
        return [replace(rendered[0], content=f"{text}\n\n{rendered[0].content}"), *rendered[1:]]
    return [ChatMessage(role="user", content=text), *rendered]


def parsed_arguments(call: ToolCall) -> Any:
    """Returns the arguments as an object; as they were written if they are none, for example cut off."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _call_text(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": parsed_arguments(call)}, ensure_ascii=False)
