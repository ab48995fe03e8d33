"""Reads the form that the text of an answer must have, from the fields of several APIs. Pure.

OpenAI has `response_format`, vLLM `structured_outputs` and `guided_*`, llama.cpp `grammar` and `json_schema`.
A request has one of them at most; what cannot be enforced is refused, here or by the leader.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from shared.errors import InvalidRequest
from shared.messages import StructuredOutput
from shared.messages.answer_parts import MAX_STRUCTURE_CHOICES

Kind = Literal["json_schema", "regex", "choice", "grammar"]
Found = tuple[str, StructuredOutput]  # the field, for errors, and what it asks for
_KINDS: dict[str, Kind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_TOP_LEVEL: dict[str, Kind] = {
    **{f"guided_{name}": kind for name, kind in _KINDS.items()},
    "json_schema": "json_schema",
    "grammar": "grammar",
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def form_of(fields: Mapping[str, Any]) -> Found | None:
    """The form that the fields of a body ask for, with the name of the field that has it; None: any text.

    Raises:
        InvalidRequest: A field is wrong, or several ask for a form.
    """
    found: list[Found] = []
    if (one := _response_format(fields.get("response_format"))) is not None:
        found.append(one)
    if (value := fields.get("structured_outputs")) is not None:
        found += _structured_outputs(value)
    for field, kind in _TOP_LEVEL.items():
        if (value := fields.get(field)) is not None:
            found.append(_made(field, kind, value))
    if len(found) > 1:
        raise _wrong(found[1][0], f"and `{found[0][0]}` both give a form of the answer: send one of them")
    return found[0] if found else None


def _response_format(value: Any) -> Found | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong("response_format", "must be an object")
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        if value.get("schema") is not None:  # as llama.cpp has it
            return _made("response_format.schema", "json_schema", value["schema"])
        return "response_format", StructuredOutput(kind="json_object")
    if kind != "json_schema":
        raise _wrong(
            "response_format.type", f"must be 'text', 'json_object' or 'json_schema', got {str(kind)[:64]!r}"
        )
    inner = value.get("json_schema")
    if not isinstance(inner, dict):
        raise _wrong("response_format.json_schema", "must be an object with `name` and `schema`")
    name, strict = inner.get("name"), inner.get("strict")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise _wrong("response_format.json_schema.name", "must have 1 to 64 letters, digits, _ or -")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong("response_format.json_schema.strict", "must be true or false")
    if inner.get("schema") is None:
        raise _wrong("response_format.json_schema.schema", "is required")
    return _made("response_format.json_schema.schema", "json_schema", inner["schema"])


def _structured_outputs(value: Any) -> list[Found]:
    if not isinstance(value, dict):
        raise _wrong("structured_outputs", "must be an object with `json`, `regex`, `choice` or `grammar`")
    found: list[Found] = []
    for field, given in value.items():
        at = f"structured_outputs.{field[:64]}"
        if given is None or given is False:
            continue
        if field == "json_object":
            found.append((at, StructuredOutput(kind="json_object")))
        elif field in _KINDS:
            found.append(_made(at, _KINDS[field], given))
        elif field != "disable_fallback":  # there is none
            raise _wrong(at, "is not served: it must be absent")
    return found


def _made(field: str, kind: Kind, value: Any) -> Found:
    if kind == "choice":
        good = isinstance(value, list) and 0 < len(value) <= MAX_STRUCTURE_CHOICES
        if not good or not all(isinstance(one, str) and one for one in value):
            raise _wrong(field, f"must be a list of 1 to {MAX_STRUCTURE_CHOICES} strings that are not empty")
        return field, StructuredOutput(kind="choice", choices=value)
    if kind == "json_schema" and isinstance(value, dict | bool):
        return field, StructuredOutput(kind=kind, definition=msgspec.json.encode(value).decode())
    if not isinstance(value, str) or not value:
        what = "a JSON Schema" if kind == "json_schema" else "a string that is not empty"
        raise _wrong(field, f"must be {what}")
    return field, StructuredOutput(kind=kind, definition=value)


def _wrong(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` {problem}", param=param)
