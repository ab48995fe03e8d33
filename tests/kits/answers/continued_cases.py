"""Requests whose answers are cut and continued: free texts, texts of a schema, arguments of a call."""

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Kind = Literal["text", "schema", "call"]
_TOPICS = (
    "rivers", "bread", "the moon", "trains", "a garden", "chess", "the sea", "a violin", "winter", "honey",
    "bridges", "owls", "a library", "tea", "volcanoes", "maps", "clocks", "a lighthouse", "wool", "comets",
)  # fmt: skip
_TASKS = (
    "Tell me something about {}.",
    "Write a short Python function about {}.",
    "List five words about {}, one on each line.",
    "Write two sentences in French about {}.",
    "Repeat exactly, three times: naïve café, {} ☕ — “déjà vu” 😀.",
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["place", "thing", "animal", "other"]},
        "year": {"type": "integer", "minimum": 1, "maximum": 2100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 1, "maxItems": 3},
    },
    "required": ["title", "kind", "year", "tags"],
    "additionalProperties": False,
}


class Case(NamedTuple):
    """One request.

    Attributes:
        kind: What is cut.
        body: Of a chat completion, without a model.
    """

    kind: Kind
    body: dict[str, Any]

    def cut(self, answer: dict[str, Any], at: int) -> dict[str, Any]:
        """The message with the answer's first `at` characters."""
        if self.kind != "call":
            return {"role": "assistant", "content": answer["content"][:at]}
        (call,) = answer["tool_calls"]
        function = call["function"] | {"arguments": call["function"]["arguments"][:at]}
        return {"role": "assistant", "content": None, "tool_calls": [call | {"function": function}]}

    def text(self, answer: dict[str, Any]) -> str:
        """The text of an answer that is cut, or continued."""
        if self.kind != "call":
            return str(answer["content"] or "")
        return "".join(call["function"]["arguments"] for call in answer.get("tool_calls") or ())


def cases(kind: Kind, number: int, max_tokens: int) -> Iterator[Case]:
    """So many requests of a kind, at temperature 0."""
    function = {"name": "note", "description": "Notes a fact.", "parameters": _SCHEMA, "strict": True}
    more: dict[Kind, dict[str, Any]] = {
        "text": {},
        "schema": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "fact", "schema": _SCHEMA}}
        },
        "call": {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    }
    for index in range(number):
        topic, task = _TOPICS[index % len(_TOPICS)], _TASKS[index // len(_TOPICS) % len(_TASKS)]
        if kind != "text":
            task = ("Describe {} as JSON.", "Note a fact about {}.", "What do you know of {}?")[index % 3]
        body = {
            "messages": [{"role": "user", "content": task.format(topic)}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
        yield Case(kind, body | more[kind])


def fits(text: str) -> bool:
    """Whether a text is JSON that has all fields of the schema and no other."""
    found = json.loads(text)
    properties: dict[str, Any] = _SCHEMA["properties"]  # type: ignore[assignment]
    return set(found) == set(properties) and found["kind"] in properties["kind"]["enum"]
