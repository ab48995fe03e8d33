"""Decides which tools of a body the model is offered; the same rule for all APIs. Pure.

Functions are served, and custom tools whose input is free text. Tools that a provider runs or defines itself
(`web_search`, `local_shell`, `bash_20250124`, ...) are left out: a model answers without them.
"""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.gateway.field_policy.left_out import LeftOut
from shared.errors import InvalidRequest

CUSTOM = "custom"
_MISSPELT = 0.75


@dataclass(slots=True)
class OfferedTools:
    """The tools of a body.

    Attributes:
        kept: Places and tools that are served; tools that are no objects are among them, to be refused.
        left_out: The others.
        names: The names and types by which a choice may name those that are left out.
    """

    kept: list[tuple[int, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def offered_tools(tools: Sequence[Any] | None, served: Collection[str | None]) -> OfferedTools:
    """Splits the tools of a body.

    Args:
        tools: The field `tools`.
        served: Types that the API's functions have; None: a tool may have no type.

    Raises:
        InvalidRequest: The type of a tool is no text, or nearly that of a function; names the field.
    """
    found = OfferedTools()
    for place, tool in enumerate(tools or ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or kind in served:
            if isinstance(tool, dict) and kind == CUSTOM and (why := _not_text(tool)):
                _leave_out(found, place, tool, f"custom with {why}")
            else:
                found.kept.append((place, tool))
            continue
        at = f"tools[{place}].type"
        known = [name for name in served if name is not None]
        if not isinstance(kind, str) or kind in ("", "function"):
            raise InvalidRequest(f"`{at}` must be {' or '.join(map(repr, sorted(known)))}", param=at)
        meant = difflib.get_close_matches(kind[:64], known, n=1, cutoff=_MISSPELT)
        if meant:
            raise InvalidRequest(f"`{at}` is {kind[:64]!r}: did you mean {meant[0]!r}?", param=at)
        _leave_out(found, place, tool, kind)
    return found


def check_choice(found: OfferedTools, name: Any, at: str) -> None:
    """Raises `InvalidRequest` if a choice names a tool that is left out; `at` is its field."""
    if isinstance(name, str) and name in found.names:
        raise InvalidRequest(f"`{at}` names {name[:64]!r}, a tool of a type that is not served", param=at)


def inner_without_tools(inside: Sequence[str], left_out: Sequence[LeftOut]) -> list[str]:
    """The places of unknown fields that are not inside tools which are left out."""
    if not left_out:
        return list(inside)
    tools = tuple(f"{part.name}." for part in left_out if part.kind == "tool")
    return [name for name in inside if not name.startswith(tools)]


def _leave_out(found: OfferedTools, place: int, tool: dict[str, Any], why: str) -> None:
    found.left_out.append(LeftOut(f"tools[{place}]", "tool", why))
    kept = {one.get("name") for _, one in found.kept if isinstance(one, dict)}
    inner = tool.get(CUSTOM)
    for name in (tool.get("name"), inner.get("name") if isinstance(inner, dict) else None, tool["type"]):
        if isinstance(name, str) and name not in kept and name not in ("function", CUSTOM):
            found.names.add(name)


def _not_text(tool: dict[str, Any]) -> str:
    """Why a custom tool is not one of free text; empty if it is one. Wrong ones are refused later."""
    inner = tool.get(CUSTOM)
    form = (inner if isinstance(inner, dict) else tool).get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    return f"a {kind[:32]}" if isinstance(kind, str) and kind != "text" else ""
