"""Reads the tools of a chat completion and the choice among them. Pure."""

import re
from typing import Any, Literal

import msgspec

from services.gateway.formats.fields.custom_tools import definition_of
from services.gateway.formats.fields.rules import CUSTOM, OfferedTools, check_choice, offered_tools
from shared.errors import InvalidRequest
from shared.messages import ToolDefinition, ToolUse
from shared.messages.conversation import MAX_TOOLS

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SERVED_TYPES = ("function", CUSTOM)
_MODES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
}


def tool_use_of(tools: Any, choice: Any, *, parallel: bool) -> ToolUse | None:
    """The tools of a request; None without tools.

    Args:
        tools: The field `tools`.
        choice: The field `tool_choice`.
        parallel: The answer may have more than one call.

    Raises:
        InvalidRequest: A tool is wrong, or the choice names none of them.
    """
    if tools is not None and not isinstance(tools, list):
        raise _wrong("tools", "must be a list of tools")
    if not tools:
        if choice not in (None, "auto", "none"):
            raise _wrong("tool_choice", "needs `tools`: without them it is 'auto', 'none' or absent")
        return None
    if len(tools) > MAX_TOOLS:
        raise _wrong("tools", f"must have at most {MAX_TOOLS} tools, got {len(tools)}")
    offered = offered_tools(tools, SERVED_TYPES)
    definitions = _definitions(offered)
    _check_choice(offered, choice)
    if not definitions:
        if choice not in (None, "auto", "none"):
            raise _wrong("tool_choice", "needs a tool that is served, and none of `tools` is")
        return None
    return _chosen(definitions, choice, parallel=parallel)


def _definitions(offered: OfferedTools) -> list[ToolDefinition]:
    definitions = [_definition(tool, f"tools[{index}]") for index, tool in offered.kept]
    seen: set[str] = set()
    for (index, _), one in zip(offered.kept, definitions, strict=True):
        if one.name in seen:
            at = f"tools[{index}].{'custom' if one.custom else 'function'}.name"
            raise _wrong(at, f"is {one.name!r}, as that of an earlier tool")
        seen.add(one.name)
    return definitions


def _chosen(definitions: list[ToolDefinition], choice: Any, *, parallel: bool) -> ToolUse:
    if choice is None:
        return ToolUse(tools=definitions, parallel=parallel)
    if isinstance(choice, str):
        mode = _MODES.get(choice)
        if mode is None:
            raise _wrong("tool_choice", "must be 'auto', 'none', 'required', or an object that names a tool")
        return ToolUse(tools=definitions, choice=mode, parallel=parallel)
    if not isinstance(choice, dict):
        raise _wrong("tool_choice", "must be a string or an object")
    kind, seen = choice.get("type"), {one.name for one in definitions}
    if kind in SERVED_TYPES:
        name = _named(choice, "tool_choice", seen)
        return ToolUse(tools=definitions, choice="named", name=name, parallel=parallel)
    if kind == "allowed_tools":
        return _allowed(definitions, choice.get("allowed_tools"), seen, parallel=parallel)
    raise _wrong(
        "tool_choice.type", f"must be 'function', 'custom' or 'allowed_tools', got {str(kind)[:64]!r}"
    )


def _allowed(definitions: list[ToolDefinition], allowed: Any, known: set[str], *, parallel: bool) -> ToolUse:
    at = "tool_choice.allowed_tools"
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(listed, list) or not listed:
        raise _wrong(f"{at}.tools", "must be a list of tools")
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise _wrong(f"{at}.mode", "must be 'auto' or 'required'")
    names = {_named(one, f"{at}.tools[{index}]", known) for index, one in enumerate(listed)}
    chosen = [one for one in definitions if one.name in names]
    return ToolUse(tools=chosen, choice=_MODES[mode], parallel=parallel)


def _check_choice(offered: OfferedTools, choice: Any) -> None:
    """Refuses a choice of tools that are left out."""
    if not isinstance(choice, dict):
        return
    check_choice(offered, choice.get("type"), "tool_choice.type")
    allowed = choice.get("allowed_tools")
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    named = {"tool_choice": choice}
    for index, one in enumerate(listed if isinstance(listed, list) else ()):
        named[f"tool_choice.allowed_tools.tools[{index}]"] = one
    for at, one in named.items():
        if isinstance(one, dict):
            check_choice(offered, one.get("type"), f"{at}.type")
            key = _key_of(one)
            inner = one.get(key)
            if isinstance(inner, dict):
                check_choice(offered, inner.get("name"), f"{at}.{key}.name")


def _key_of(one: Any) -> str:
    return CUSTOM if isinstance(one, dict) and one.get("type") == CUSTOM else "function"


def _named(choice: Any, at: str, known: set[str]) -> str:
    key = _key_of(choice)
    function = choice.get(key) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in known:
        raise _wrong(f"{at}.{key}.name", f"must be the name of one of `tools`, got {str(name)[:64]!r}")
    return name


def _definition(tool: Any, at: str) -> ToolDefinition:
    if not isinstance(tool, dict):
        raise _wrong(at, "must be an object")
    key = _key_of(tool)
    function = tool.get(key)
    if not isinstance(function, dict):
        raise _wrong(f"{at}.{key}", "must be an object")
    name, description = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(f"{at}.{key}.name", "must have 1 to 128 letters, digits or _ . : -")
    if description is not None and not isinstance(description, str):
        raise _wrong(f"{at}.{key}.description", "must be a string")
    if key == CUSTOM:
        return definition_of(name, description or "")
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong(f"{at}.function.parameters", "must be a JSON Schema, which is an object")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(f"{at}.function.strict", "must be true or false")
    return ToolDefinition(
        name=name,
        description=description or "",
        parameters="" if parameters is None else msgspec.json.encode(parameters).decode(),
        strict=bool(strict),
    )


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
