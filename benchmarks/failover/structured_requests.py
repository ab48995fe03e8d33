"""Requests whose answers must have a form, for the failover benchmark, and the check of that form.

Schemas are bounded, so that an answer ends within its tokens. The judge is the `jsonschema` package, which
the development extra installs.
"""

import json
from typing import Any

from benchmarks.failover.streams import NAMES
from benchmarks.lib.measuring import BenchError
from shared.client import Completion
from shared.messages import (
    ChatMessage,
    GenerateRequest,
    Sampling,
    StructuredOutput,
    ToolDefinition,
    ToolUse,
)

_COLOURS = ["red", "green", "blue", "a very dark and rather unusual violet"]
_RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "colour": {"enum": _COLOURS},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "colour", "count"],
    "additionalProperties": False,
}
_RECORDS: dict[str, Any] = {"type": "array", "items": _RECORD, "minItems": 3, "maxItems": 3}
_TEXT = "Describe three things that {name} owns, each with its colour and how many there are."


def make_structured_requests(model: str, count: int, tokens: int) -> list[GenerateRequest]:
    """Return requests at temperature 1 with one to four choices: half under a schema, half with tools.

    Some have log probabilities, penalties or stop strings.
    """
    schema = StructuredOutput(kind="json_schema", definition=json.dumps(_RECORDS))
    made = []
    for number in range(count):
        sampling = Sampling(
            temperature=1.0,
            seed=2000 + number,
            max_tokens=tokens,
            n=1 + number // 2 % 4,
            stop=["\n\n\n\n"] if number % 8 == 4 else [],
            repetition_penalty=1.1 if number % 8 == 6 else 1.0,
            logprobs=2 if number % 8 in {2, 3} else -1,
        )
        text = _TEXT.format(name=f"{NAMES[number % len(NAMES)]} {number}")
        made.append(
            GenerateRequest(
                request_id="r-0",
                model=model,
                messages=[ChatMessage(role="user", content=text)],
                sampling=sampling,
                structured=None if number % 2 else schema,
                tools=_tools(number) if number % 2 else None,
            )
        )
    return made


def judge_answers(requests: list[GenerateRequest], answers: list[Completion]) -> dict[str, Any]:
    """Check all choices against their schemas.

    Returns:
        The number of `valid` choices and of those `cut` at their length, and the `invalid` ones in words.

    Raises:
        BenchError: The `jsonschema` package is missing.
    """
    try:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 (of the development extra)
    except ImportError as error:
        raise BenchError("`--structured` needs the package jsonschema: pip install jsonschema") from error
    records, record = Draft202012Validator(_RECORDS), Draft202012Validator(_RECORD)
    valid, cut, invalid = 0, 0, []
    for request, answer in zip(requests, answers, strict=True):
        for choice in answer.choices:
            if choice.finish_reason == "length":
                cut += 1
                continue
            try:
                if request.tools is None:
                    fits = records.is_valid(json.loads(choice.text))
                else:
                    calls = [json.loads(call.arguments) for call in choice.tool_calls]
                    fits = bool(calls) and all(record.is_valid(one) for one in calls)
            except ValueError:
                fits = False
            valid += fits
            if not fits:
                invalid.append(f"choice {choice.index} of {request.sampling.seed}: {choice.text[:200]!r}")
    return {"valid": valid, "cut": cut, "invalid": invalid}


def _tools(number: int) -> ToolUse:
    tools = [
        ToolDefinition(name=name, description=about, parameters=json.dumps(_RECORD), strict=True)
        for name, about in (("add_thing", "Adds a thing to the list."), ("drop_thing", "Drops a thing."))
    ]
    if number % 4 == 1:
        return ToolUse(tools=tools, choice="required")
    return ToolUse(tools=tools, choice="named", name="add_thing", parallel=False)
