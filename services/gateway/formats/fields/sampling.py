"""Translates the fields that chat and text completions share. Pure: ids, seeds and sessions are arguments.

The form that the text of an answer must have comes from fields of several APIs: OpenAI has `response_format`,
vLLM `structured_outputs` and `guided_*`, llama.cpp `grammar` and `json_schema`. A request has one of them at
most; what cannot be enforced is refused, here or by the leader.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from services.gateway.formats.fields.sampling_body import SamplingBody
from shared.errors import InvalidRequest
from shared.messages import (
    Sampling,
    SessionRef,
    StructuredOutput,
)
from shared.messages.answer_parts import MAX_STRUCTURE_CHOICES

# the caller's names of fields of `GenerateRequest`
NAMES_IN_BODY = {
    "template.variables": "chat_template_kwargs",
    "template.reasoning_effort": "reasoning_effort",
    "template": "chat_template_kwargs",
    "continues": "continue_final_message",
}


NEWER_LENGTH = {"max_tokens": "max_completion_tokens"}  # of a body that has the newer field


# options of sampling that a plain body may have too
PLAIN_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "ignore_eos",
)
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


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of a request that do not come from its body."""

    request_id: str
    tenant: str
    seed: int
    session: SessionRef | None


def given_values(body: object, names: Iterable[str]) -> dict[str, Any]:
    """The sampling options that a body has: a default that is named counts as a value on the wire."""
    found = {name: value for name in names if (value := getattr(body, name)) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found


def sampling_of(body: SamplingBody, *, seed: int, max_tokens: int, logprobs: int) -> Sampling:
    """The sampling options of a body; `seed` is used if the body has none."""
    wanted = given_values(body, (*PLAIN_SAMPLING, "stop_token_ids", "min_tokens"))
    if body.prompt_logprobs is not None:
        if body.stream:
            raise InvalidRequest(
                "`prompt_logprobs` is not streamed: leave `stream` out, or use `echo` with `logprobs` on "
                "/v1/completions",
                param="prompt_logprobs",
            )
        wanted["prompt_logprobs"] = body.prompt_logprobs
    return Sampling(
        seed=seed if body.seed is None else body.seed % 2**63,
        seed_given=body.seed is not None,
        max_tokens=max_tokens,
        stop=body.stop,
        logit_bias=body.logit_bias,
        logprobs=logprobs,
        **wanted,
    )


def delivery_of(body: SamplingBody) -> Literal["stream", "whole"]:
    """How the answer comes; raises `InvalidRequest` for options of a stream that is none."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true", param="stream_options")
    return "stream" if body.stream else "whole"


def structure_of(body: SamplingBody) -> StructuredOutput | None:
    """The form that the answer must have; raises `InvalidRequest` if a field is wrong."""
    found = form_of(vars(body))
    return found[1] if found is not None else None


def field_names_of(body: SamplingBody, *, newer_length: bool = False) -> dict[str, str]:
    """The caller's names of fields of `GenerateRequest`, for a leader's errors.

    Args:
        body: The checked body.
        newer_length: It has the newer field for the length of an answer.
    """
    found, names = form_of(vars(body)), NAMES_IN_BODY
    if newer_length:
        names = names | NEWER_LENGTH
    if found is None:
        return names
    return names | dict.fromkeys(("structured.definition", "structured.choices", "structured"), found[0])


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
