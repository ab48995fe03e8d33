"""Types of fields in the bodies of completions that are more than a number or a text: checks and schemas."""

from typing import Annotated, Any

import msgspec
from pydantic import Field, PlainValidator, WithJsonSchema

from services.gateway.formats.fields.body_types import wrong
from services.gateway.formats.fields.inner_fields import ACCEPTED
from shared.messages.base import NOT_IN_NAMES
from shared.messages.generate import MAX_BIASES, MAX_STOP_TOKENS, MAX_STOPS

_MAX_PROMPTS = 999  # of one call, before the gateway's own limit refuses it with a better text
NAME = rf"^[^{NOT_IN_NAMES}]+$"  # of a model or a session, for a field that bounds its length
_U32_MAX = 2**32 - 1
_TokenIds = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=_U32_MAX)]], msgspec.Meta(min_length=1)]


def _stops_of(stop: Any) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop
    if stops is None:
        return []
    if not isinstance(stops, list):
        raise wrong("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise wrong(f"must have at most {MAX_STOPS} strings, got {len(stops)}")
    if not all(isinstance(item, str) for item in stops):
        raise wrong("must be a string or a list of strings")
    if not all(1 <= len(item) <= 256 for item in stops):
        raise wrong("must have strings of 1 to 256 characters")
    return stops


def _biases_of(biases: Any) -> dict[int, float]:
    if biases is None:
        return {}
    if not isinstance(biases, dict):
        raise wrong("must be an object that maps token ids to numbers")
    if len(biases) > MAX_BIASES:
        raise wrong(f"must have at most {MAX_BIASES} tokens, got {len(biases)}")
    result: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _U32_MAX):
            raise wrong(f"keys must be token ids, got {key[:64]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise wrong(f"the bias of token {key} must be a number from -100 to 100")
        result[int(key)] = float(bias)
    return result


def _is_token_ids(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    try:
        msgspec.convert(value, _TokenIds)  # six times as fast as a loop
    except msgspec.ValidationError:
        return False
    return True


def _ids_of(value: Any) -> list[int]:
    if not _is_token_ids(value):
        raise wrong("must be a non-empty list of token ids")
    ids: list[int] = value
    return ids


def _prompts_of(prompt: Any) -> list[str | list[int]]:
    """One entry for each prompt: its text or its token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if _is_token_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and len(prompt) > _MAX_PROMPTS:
        raise wrong(f"must be a list of token ids, or have at most {_MAX_PROMPTS} prompts, got {len(prompt)}")
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(item, str) or _is_token_ids(item) for item in prompt)
    ):
        return prompt
    raise wrong("must be a string, a list of token ids, or a non-empty list of those")


_BOUNDED_STRING = {"type": "string", "minLength": 1, "maxLength": 256}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}

Stops = Annotated[
    list[str],
    PlainValidator(_stops_of),
    WithJsonSchema(
        {"anyOf": [_BOUNDED_STRING, {"type": "array", "items": _BOUNDED_STRING, "maxItems": MAX_STOPS}]}
    ),
]
Biases = Annotated[
    dict[int, float],
    PlainValidator(_biases_of),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}
    ),
]
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(_prompts_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _TOKEN_IDS,
                {"type": "array", "items": {"anyOf": [{"type": "string"}, _TOKEN_IDS]}, "minItems": 1},
            ]
        }
    ),
]


PromptIds = Annotated[
    list[int],
    PlainValidator(_ids_of),
    WithJsonSchema(_TOKEN_IDS),
]
StopTokens = Annotated[
    list[Annotated[int, Field(ge=0, le=_U32_MAX)]], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)
]
# checked in `sampling.py`
Form = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]})]
Definition = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]})
]
# checked in `chat/tools.py`
_FUNCTION = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "parameters": {"type": "object", "description": "A JSON Schema."},
        "strict": {"type": "boolean"},
    },
    "required": ["name"],
}
_CUSTOM = {
    "type": "object",
    "description": "A tool whose input is a text.",
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "format": {"type": "object", "properties": {"type": {"const": "text"}}},
    },
    "required": ["name"],
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"enum": ["function", "custom"]}, "function": _FUNCTION, "custom": _CUSTOM},
    "required": ["type"],
    ACCEPTED: ["cache_control"],
}
_NAMED = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function", "custom"]},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}},
        "custom": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _NAMED},
            },
        },
    },
}
Tools = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "array", "items": _TOOL}, {"type": "null"}]})]
ToolChoice = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string"}, _NAMED, _ALLOWED, {"type": "null"}]})
]
