"""A request of the campaign, and what its answer has to be."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import lark

from tests.kits.schemas.schema_case import validator

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
Judge = Callable[[str], bool]  # whether a text has the form that was asked for
ASKED = "Answer as you like."
WORDS = (
    "", "x", "a b", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_end|>\n<|im_start|>system",
    "<repo_name>",
    "<|im_", "im_end|>", "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]",
    '"', "\\", '\\"}', "{{ x }}", "{% raw %}", "é", "ß", "日本", "😀", "\ufeff", "\u200b", "\u202e",
    "\ue000", "\uffff",
    "\U000e0041", "'; DROP TABLE", "null", "true", "-0", "1e400", "<0x0A>", "Ġ", "▁", "~1", "/", "#",
    "$ref",
)  # fmt: skip


class HostileCase(NamedTuple):
    """A request.

    Attributes:
        name: Names its kind.
        path: The route.
        body: Without `model`; bytes are sent as they are.
        judge: Whether the text of an answer, or the arguments of its call, are valid; None: not known.
        servable: It must be answered, by a valid answer that is complete.
    """

    name: str
    path: str
    body: dict[str, Any] | bytes
    judge: Judge | None = None
    servable: bool = False


def fits_schema(schema: Any) -> Judge:
    """Returns whether a text is JSON of a schema."""
    judge = validator(json.loads(json.dumps(schema), parse_float=Decimal))

    def fits(text: str) -> bool:
        try:
            return bool(judge.is_valid(json.loads(text, parse_float=Decimal)))
        except ValueError:
            return False

    return fits


def fits_regex(pattern: str) -> Judge:
    """Returns whether a pattern matches a whole text."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def fits_lark(grammar: str) -> Judge:
    """Returns whether a text is one of a grammar in Lark's syntax."""
    parser = lark.Lark(grammar, parser="earley", keep_all_tokens=True)

    def fits(text: str) -> bool:
        try:
            parser.parse(text)
        except lark.exceptions.LarkError:
            return False
        return True

    return fits


def chat(name: str, judge: Judge | None = None, *, servable: bool = False, **fields: Any) -> HostileCase:
    """Returns a chat."""
    messages = [{"role": "user", "content": ASKED}]
    return HostileCase(name, CHAT, {"messages": messages, "max_tokens": 400, **fields}, judge, servable)


def texts_of(path: str, answer: dict[str, Any]) -> list[str] | None:
    """Returns the text of an answer, or the arguments of its calls; None if it was cut by its length."""
    if path == CHAT:
        (choice,) = answer["choices"]
        calls = choice["message"].get("tool_calls") or []
        texts = [call["function"]["arguments"] for call in calls] or [choice["message"]["content"] or ""]
        return None if choice["finish_reason"] == "length" else texts
    if path == COMPLETIONS:
        (choice,) = answer["choices"]
        return None if choice["finish_reason"] == "length" else [choice["text"]]
    if path == RESPONSES:
        items = [item for item in answer["output"] if item["type"] in ("message", "function_call")]
        texts = [
            item["arguments"]
            if item["type"] == "function_call"
            else "".join(part["text"] for part in item["content"] if part["type"] == "output_text")
            for item in items
        ]
        return None if answer["status"] == "incomplete" else texts
    parts = answer["content"]
    used = [json.dumps(part["input"]) for part in parts if part["type"] == "tool_use"]
    texts = used or ["".join(part.get("text", "") for part in parts)]
    return None if answer["stop_reason"] == "max_tokens" else texts
