"""Reads the tools of a request, the choice among them, and the form of the answer's text. Pure."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.gateway.formats.fields.custom_tools import definition_of
from services.gateway.formats.fields.rules import CUSTOM, OfferedTools, check_choice, offered_tools
from shared.errors import InvalidRequest
from shared.messages import StructuredOutput, ToolDefinition, ToolUse

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SERVED_TYPES = ("function", CUSTOM)
_ALWAYS: tuple[Literal["auto", "none", "required"], ...] = ("auto", "none", "required")


def tool_use_of(
    tools: Sequence[dict[str, Any]] | None, choice: str | dict[str, Any] | None, *, parallel: bool
) -> ToolUse | None:
    """The tools of a request; None without tools.

    Raises:
        InvalidRequest: A tool is wrong, or the choice names none of them.
    """
    if not tools:
        if choice not in (None, "auto", "none"):
            raise _wrong("tool_choice", "needs `tools`")
        return None
    offered = offered_tools(tools, SERVED_TYPES)
    definitions = [_definition(tool, f"tools[{index}]") for index, tool in offered.kept]
    names = [one.name for one in definitions]
    for number, (index, _) in enumerate(offered.kept):
        if names[number] in names[:number]:
            raise _wrong(f"tools[{index}].name", f"is {names[number]!r}, as that of an earlier tool")
    _check_choice(offered, choice)
    if not definitions:
        if choice not in (None, "auto", "none"):
            raise _wrong("tool_choice", "needs a tool that is served, and none of `tools` is")
        return None
    if choice is None:
        return ToolUse(tools=definitions, parallel=parallel)
    if isinstance(choice, str):
        if choice not in _ALWAYS:
            raise _wrong(
                "tool_choice", f"must be 'auto', 'none', 'required' or an object, got {choice[:64]!r}"
            )
        return ToolUse(tools=definitions, choice=_mode(choice), parallel=parallel)
    kind = choice.get("type")
    if kind in SERVED_TYPES:
        wanted = choice.get("name")
        if wanted not in names:
            raise _wrong(
                "tool_choice.name", f"must be the name of one of the tools, got {str(wanted)[:64]!r}"
            )
        return ToolUse(tools=definitions, choice="named", name=str(wanted), parallel=parallel)
    if kind == "allowed_tools":
        return _allowed(definitions, choice, parallel=parallel)
    raise _wrong(
        "tool_choice.type", f"must be 'function', 'custom' or 'allowed_tools', got {str(kind)[:64]!r}"
    )


def _allowed(definitions: list[ToolDefinition], choice: dict[str, Any], *, parallel: bool) -> ToolUse:
    listed = choice.get("tools")
    if not isinstance(listed, list) or not listed:
        raise _wrong("tool_choice.tools", "must be a list of tools")
    wanted = [tool.get("name") if isinstance(tool, dict) else None for tool in listed]
    known = {one.name: one for one in definitions}
    for index, name in enumerate(wanted):
        if name not in known:
            raise _wrong(f"tool_choice.tools[{index}].name", f"is none of the tools: {str(name)[:64]!r}")
    mode = choice.get("mode", "auto")
    if mode not in {"auto", "required"}:
        raise _wrong("tool_choice.mode", "must be 'auto' or 'required'")
    allowed = [one for one in definitions if one.name in wanted]
    return ToolUse(tools=allowed, choice=_mode(mode), parallel=parallel)


def _check_choice(offered: OfferedTools, choice: str | dict[str, Any] | None) -> None:
    """Refuses a choice of tools that are left out."""
    if not isinstance(choice, dict):
        return
    listed = choice.get("tools")
    named: dict[str, Any] = {"tool_choice": choice}
    for index, one in enumerate(listed if isinstance(listed, list) else ()):
        named[f"tool_choice.tools[{index}]"] = one
    for at, one in named.items():
        for field in ("type", "name"):
            check_choice(offered, one.get(field) if isinstance(one, dict) else None, f"{at}.{field}")


def _mode(word: str) -> Literal["auto", "none", "required"]:
    return next(mode for mode in _ALWAYS if mode == word)


def _definition(tool: dict[str, Any], at: str) -> ToolDefinition:
    name, description = tool.get("name"), tool.get("description") or ""
    parameters, strict = tool.get("parameters"), tool.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"{at}.name", "must have 1 to 128 letters, digits or _ . : -")
    if not isinstance(description, str):
        raise _wrong(f"{at}.description", "must be a string")
    if tool["type"] == CUSTOM:
        return definition_of(name, description)
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong(f"{at}.parameters", "must be a JSON Schema")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(f"{at}.strict", "must be true or false")
    return ToolDefinition(
        name=name,
        description=description,
        parameters="" if parameters is None else msgspec.json.encode(parameters).decode(),
        strict=bool(strict),
    )


def structure_of(text_format: dict[str, Any] | None) -> StructuredOutput | None:
    """The form that `text.format` asks for; None for plain text.

    Raises:
        InvalidRequest: It is wrong; names the field.
    """
    kind = "text" if text_format is None else text_format.get("type")
    if text_format is None or kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(kind="json_object")
    if kind != "json_schema":
        raise _wrong(
            "text.format.type", f"must be 'text', 'json_object' or 'json_schema', got {str(kind)[:64]!r}"
        )
    schema, name = text_format.get("schema"), text_format.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise _wrong("text.format.name", "must have 1 to 64 letters, digits, _ or -")
    if not isinstance(schema, dict):
        raise _wrong("text.format.schema", "must be a JSON Schema")
    return StructuredOutput(kind="json_schema", definition=msgspec.json.encode(schema).decode())


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
