"""Reads the tools of a request of the Messages API, the choice among them, and its answer's form. Pure."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.gateway.formats.anthropic.schema import (
    ConversationBody,
    OutputFormatBody,
    ThinkingBody,
    ToolChoiceBody,
)
from services.gateway.formats.fields.rules import check_choice, offered_tools
from shared.errors import InvalidRequest
from shared.messages import StructuredOutput, TemplateOptions, ToolDefinition, ToolUse

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
SERVED_TYPES = (None, "custom")  # other types are Anthropic's own tools
_CHOICES: dict[str, Literal["auto", "none", "required", "named"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}


def tool_use_of(tools: Sequence[dict[str, Any]] | None, choice: ToolChoiceBody | None) -> ToolUse | None:
    """The tools of a request; None without tools.

    Raises:
        InvalidRequest: A tool is wrong, or the choice names none of them; names the field.
    """
    if not tools:
        if choice is not None and choice.type in {"any", "tool"}:
            raise _wrong("tool_choice", "needs `tools`")
        return None
    offered = offered_tools(tools, SERVED_TYPES)
    if choice is not None and choice.type == "tool":
        check_choice(offered, choice.name, "tool_choice.name")
    if not offered.kept:
        if choice is not None and choice.type in {"any", "tool"}:
            raise _wrong("tool_choice", "needs a tool that is served, and none of `tools` is")
        return None
    definitions = [_definition(tool, f"tools[{index}]") for index, tool in offered.kept]
    names = [one.name for one in definitions]
    for number, (index, _) in enumerate(offered.kept):
        if names[number] in names[:number]:
            raise _wrong(f"tools[{index}].name", f"is {names[number]!r}, as that of an earlier tool")
    if choice is None:
        return ToolUse(tools=definitions)
    named = choice.name if choice.type == "tool" else None
    if choice.type == "tool" and named not in names:
        raise _wrong("tool_choice.name", f"must be the name of one of the tools, got {str(named)[:64]!r}")
    return ToolUse(
        tools=definitions,
        choice=_CHOICES[choice.type],
        name=named or "",
        parallel=not choice.disable_parallel_tool_use,
    )


def _definition(tool: dict[str, Any], at: str) -> ToolDefinition:
    name, description = tool.get("name"), tool.get("description")
    schema, strict = tool.get("input_schema"), tool.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"{at}.name", "must have 1 to 128 letters, digits, _ or -")
    if description is not None and not isinstance(description, str):
        raise _wrong(f"{at}.description", "must be a string")
    if not isinstance(schema, dict):
        raise _wrong(f"{at}.input_schema", "must be a JSON Schema")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(f"{at}.strict", "must be true or false")
    return ToolDefinition(
        name=name,
        description=description or "",
        parameters=msgspec.json.encode(schema).decode(),
        strict=bool(strict),
    )


def structure_of(body: ConversationBody) -> StructuredOutput | None:
    """The form that the answer's text must have; None for plain text.

    Raises:
        InvalidRequest: Two fields ask for one.
    """
    form: OutputFormatBody | None = body.output_format
    in_config = body.output_config.format if body.output_config is not None else None
    if form is not None and in_config is not None:
        raise _wrong("output_format", "and `output_config.format` are both given; send one")
    form = form or in_config
    if form is None:
        return None
    return StructuredOutput(kind="json_schema", definition=msgspec.json.encode(form.schema_).decode())


def template_of(body: ConversationBody, max_tokens: int = 0) -> TemplateOptions | None:
    """Variables for the chat template; None if the request asks for none.

    Args:
        body: The request.
        max_tokens: Tokens that the answer may have, thinking included; 0: not known.

    Raises:
        InvalidRequest: The thinking cannot fit into the answer.
    """
    effort = body.output_config.effort if body.output_config is not None else None
    variables = _thinking(body.thinking, max_tokens)
    if not effort and not variables:
        return None
    return TemplateOptions(reasoning_effort=effort or "", variables=variables)


def _thinking(thinking: ThinkingBody | None, max_tokens: int) -> str:
    if thinking is None or thinking.type == "adaptive":
        return ""
    if thinking.budget_tokens is not None and max_tokens and thinking.budget_tokens >= max_tokens:
        raise _wrong(
            "thinking.budget_tokens",
            f"must be less than `max_tokens`, which is {max_tokens}, got {thinking.budget_tokens}",
        )
    thinks = "true" if thinking.type == "enabled" else "false"
    return f'{{"enable_thinking":{thinks},"thinking":{thinks}}}'  # templates know one or the other name


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
