"""Decides what becomes of fields and tools that no API here serves; one table for all APIs. Pure.

A field that changes the meaning of an answer is refused by name. One that a model can do without is left out
and named to the caller. Functions are offered to the model, and custom tools whose input is free text. Tools
that a provider runs or defines itself (`web_search`, `local_shell`, `bash_20250124`, ...) are left out: a
model answers without them.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from services.gateway.answering.left_out import LeftOut
from shared.errors import InvalidRequest

MISSPELT = 0.85  # how similar a field must be to a known one to count as misspelt
_LONGEST_FIELD = 64  # comparing takes time; no known name is nearly as long
_MAX_COMPARED = 16  # unknown fields of a body that are compared; some 0.2 ms each

CUSTOM = "custom"
_MISSPELT_TYPE = 0.75  # as `MISSPELT`, for types of tools


class FieldRule(NamedTuple):
    """What becomes of a field that no API here serves.

    Attributes:
        action: A field that changes the meaning of an answer is refused. One that a model can do without is
            left out. One that asks for nothing about the answer is accepted.
        why: For the caller; of a refused field what follows its name in the message.
        neutral: Values that ask for nothing. `False` and `0` are equal in Python, as needed here.
    """

    action: Literal["refuse", "leave out", "accept"]
    why: str = ""
    neutral: tuple[Any, ...] = ()


# by the part of a body in which the field is
POLICY: dict[str, dict[str, FieldRule]] = {
    "any body": {
        "modalities": FieldRule("refuse", neutral=(["text"],)),
        "audio": FieldRule("refuse"),
        "suffix": FieldRule("refuse", neutral=("",)),
        "echo": FieldRule("refuse", neutral=(False,)),
        "bad_words": FieldRule("refuse", neutral=([],)),
        "allowed_token_ids": FieldRule("refuse"),
        "include_stop_str_in_output": FieldRule("refuse", neutral=(False,)),
        "use_beam_search": FieldRule("refuse", neutral=(False,)),
        "guided_whitespace_pattern": FieldRule("refuse"),
        "continue_final_message": FieldRule("refuse", neutral=(False,)),
        "chat_template": FieldRule("refuse"),
        "prediction": FieldRule("leave out", "a hint for speed"),
        "web_search_options": FieldRule("leave out", "no web search"),
        "context_management": FieldRule("leave out", "no editing of the context"),
        "mcp_servers": FieldRule("leave out", "no tools of servers", ([],)),
        "container": FieldRule("leave out", "no code execution"),
        "verbosity": FieldRule("leave out", "no such control", ("medium",)),
        "moderation": FieldRule("leave out", "no moderation"),
        "inference_geo": FieldRule("leave out", "one location", ("not_available", "global")),
        "speed": FieldRule("leave out", "one speed", ("standard",)),
        "guided_decoding_backend": FieldRule("leave out", "one backend", ("auto",)),
        "length_penalty": FieldRule("leave out", "for beam search only", (1,)),
        "skip_special_tokens": FieldRule("leave out", "always true", (True,)),
        "spaces_between_special_tokens": FieldRule("leave out", "always true", (True,)),
        "prompt_cache_key": FieldRule("accept"),
        "prompt_cache_retention": FieldRule("accept"),
        "safety_identifier": FieldRule("accept"),
        "add_generation_prompt": FieldRule("accept"),
        "request_id": FieldRule("accept"),
        "betas": FieldRule("accept"),
        "cache_control": FieldRule("accept"),
        "diagnostics": FieldRule("accept"),
        "user_profile_id": FieldRule("accept"),
        "workspace_id": FieldRule("accept"),
        "end_id": FieldRule("accept"),  # this and the next are of gRPC's clients: values of the model itself
        "pad_id": FieldRule("accept"),
    },
    "completion": {  # what came before `tools`
        "functions": FieldRule("refuse", "is no longer served: send `tools`", ([], "none")),
        "function_call": FieldRule("refuse", "is no longer served: send `tool_choice`", ([], "none")),
    },
    "message of a chat": {"function_call": FieldRule("refuse"), "audio": FieldRule("refuse")},
    "response": {
        name: FieldRule("refuse", f"is not supported: {why}")
        for name, why in {
            "n": "a response has one answer: send several requests",
            "messages": "use `input`",
            "max_tokens": "use `max_output_tokens`",
            "max_completion_tokens": "use `max_output_tokens`",
            "response_format": "use `text.format`",
            "functions": "use `tools`",
            "logprobs": "use `include: ['message.output_text.logprobs']` and `top_logprobs`",
            "conversation": "conversations are not served: use `previous_response_id`",
            "prompt": "stored prompts are not served: use `instructions` and `input`",
        }.items()
    },
}


def judge_fields(
    extra: Mapping[str, Any] | None, known: Iterable[str], also: Iterable[str] = ()
) -> tuple[list[str], list[LeftOut]]:
    """Judges the fields of a body that its model does not have.

    Only the first `_MAX_COMPARED` unknown fields are compared with known ones.

    Args:
        extra: Fields at the top of the body that its model does not know.
        known: Names of fields that are served on the route.
        also: Names that the route has refused, with neutral values.

    Returns:
        The names of unknown fields, shortened; and the known fields that are left out.

    Raises:
        InvalidRequest: A field changes the meaning of the answer or is misspelt; names it.
    """
    unknown: list[str] = []
    left_out: list[LeftOut] = []
    names = None
    for name, value in (extra or {}).items():
        rule = POLICY["any body"].get(name)
        if rule is None:
            if len(unknown) < _MAX_COMPARED:
                not_served = (other for other, one in POLICY["any body"].items() if one.action != "accept")
                names = names or [*known, *not_served, *also]
                _refuse_misspelt(name, names)
            unknown.append(name[:_LONGEST_FIELD])
        elif rule.action == "refuse":
            refuse_unless_neutral(name, value, rule)
        elif rule.action == "leave out" and value is not None and value not in rule.neutral:
            left_out.append(LeftOut(name, why=rule.why))
    return unknown, left_out


def refuse_unless_neutral(field: str, value: Any, rule: FieldRule) -> None:
    """Raises `InvalidRequest` if the value of a field asks for what is not served."""
    if value is None or value in rule.neutral:
        return
    allowed = " or ".join(["absent", *(repr(item) for item in rule.neutral if item != "")])
    why = rule.why or f"is not supported: it must be {allowed}"
    raise InvalidRequest(f"`{field}` {why}", param=field)


def _refuse_misspelt(field: str, names: Iterable[str]) -> None:
    """Raises `InvalidRequest` if an unknown field is nearly a known one."""
    if len(field) > _LONGEST_FIELD or field in names:
        return
    meant = difflib.get_close_matches(field, names, n=1, cutoff=MISSPELT)
    if meant:
        raise InvalidRequest(f"unknown field `{field}`: did you mean `{meant[0]}`?", param=field)


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
    for index, tool in enumerate(tools or ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or kind in served:
            if isinstance(tool, dict) and kind == CUSTOM and (why := _not_text(tool)):
                _leave_out(found, index, tool, f"custom with {why}")
            else:
                found.kept.append((index, tool))
            continue
        at = f"tools[{index}].type"
        known = [name for name in served if name is not None]
        if not isinstance(kind, str) or kind in ("", "function"):
            raise InvalidRequest(f"`{at}` must be {' or '.join(map(repr, sorted(known)))}", param=at)
        meant = difflib.get_close_matches(kind[:64], known, n=1, cutoff=_MISSPELT_TYPE)
        if meant:
            raise InvalidRequest(f"`{at}` is {kind[:64]!r}: did you mean {meant[0]!r}?", param=at)
        _leave_out(found, index, tool, kind)
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


def _leave_out(found: OfferedTools, index: int, tool: dict[str, Any], why: str) -> None:
    found.left_out.append(LeftOut(f"tools[{index}]", "tool", why))
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
