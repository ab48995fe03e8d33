"""Requests that look hostile and can be served: texts of control tokens in every place, in every API."""

import json
import random
import re
from typing import Any

from tests.kits.chaos.hostile.hostile_case import (
    ASKED,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    WORDS,
    HostileCase,
    chat,
    fits_lark,
    fits_regex,
    fits_schema,
)


def servable_case(number: int) -> HostileCase:
    """Returns the case of a number; all cases of one number are equal."""
    if number == 0:
        return _reported()
    draw = random.Random(f"servable {number}")
    kinds = (
        _schema,
        _schema,
        _choice,
        _regex,
        _grammar,
        _tool,
        _tool,
        _completion,
        _response,
        _message,
        _plain,
    )
    return kinds[number % len(kinds)](draw)


def _reported() -> HostileCase:
    """Three of these closed a group to everybody."""
    properties = {"a": {"type": "boolean"}, "m": {"const": "<|im_end|>"}}
    schema = {
        "type": "object", "properties": properties, "required": ["a", "m"], "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return chat("reported", fits_schema(schema), servable=True, response_format=form)


def hostile_text(draw: random.Random, words: int = 4) -> str:
    """Returns a text of some words."""
    return "".join(draw.choice(WORDS) for _ in range(draw.randint(1, words)))


def small_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """Returns a schema of constants and other short values, whose names and texts are hostile."""
    text, texts = hostile_text(draw), {hostile_text(draw): 0 for _ in range(draw.randint(1, 4))}
    modes: list[dict[str, Any]] = [
        {"const": draw.choice([text, 3, None, [text], {text: 1}])},
        {"enum": list(texts)},
        {"type": draw.choice(["boolean", "null"])},
        {"type": "integer", "minimum": 0, "maximum": draw.choice([0, 9, 1000])},
        {"type": "string", "maxLength": draw.randint(0, 6)},
        {"type": "string", "pattern": f"^{escaped(text)}[ab]$"},
        {"anyOf": [{"const": text}, {"type": "boolean"}]},
    ]
    if depth < 3 and draw.random() < 0.25:
        array = {"type": "array", "minItems": draw.randint(0, 1), "maxItems": 2}
        modes = [{**array, "items": small_schema(draw, depth + 1)}, small_object(draw, depth)]
    return draw.choice(modes)


def small_object(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """Returns the schema of an object with hostile names, all required."""
    names = list({hostile_text(draw): 0 for _ in range(draw.randint(1, 3))})
    properties = {name: small_schema(draw, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def escaped(text: str) -> str:
    """Returns a pattern of a text, in the syntax of ECMA and Rust."""
    return re.sub(r"([\\.^$|?*+(){}\[\]/-])", r"\\\1", text)


def _schema(draw: random.Random) -> HostileCase:
    schema = small_object(draw)
    forms: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        {"structured_outputs": {"json": schema}},
        {"guided_json": schema},
    ]
    return chat("schema", fits_schema(schema), servable=True, **draw.choice(forms))


def _choice(draw: random.Random) -> HostileCase:
    choices = [text for _ in range(draw.randint(1, 5)) if (text := hostile_text(draw))] or ["x"]
    form: dict[str, Any] = draw.choice(
        [{"structured_outputs": {"choice": choices}}, {"guided_choice": choices}]
    )
    return chat("choice", lambda text: text in choices, servable=True, **form)


def _regex(draw: random.Random) -> HostileCase:
    parts = [escaped(hostile_text(draw)), "[a-c]{1,3}", f"(?:{escaped(hostile_text(draw))}|x)", "[0-9]?"]
    draw.shuffle(parts)
    pattern = "".join(parts)
    form: dict[str, Any] = draw.choice(
        [{"structured_outputs": {"regex": pattern}}, {"guided_regex": pattern}]
    )
    return chat("regex", fits_regex(pattern), servable=True, **form)


def _grammar(draw: random.Random) -> HostileCase:
    texts: list[str] = [
        text for _ in range(3) if (text := hostile_text(draw)) and "\\" not in text and '"' not in text
    ]
    first, second = (*texts, "x", "y")[:2]
    gbnf = f'root ::= "{first}" [ab] ("{second}" | "z")'
    if draw.random() < 0.3 and not any(char in "".join(texts) for char in "\n"):
        pattern = f"{re.escape(first)}[ab](?:{re.escape(second)}|z)"
        return chat("gbnf", fits_regex(pattern), servable=True, structured_outputs={"grammar": gbnf})
    quoted, other = (json.dumps(text, ensure_ascii=False) for text in (first, second))
    lark = f"start: {quoted} END\nEND: /[ab]/ | {other}\n"
    return chat("lark", fits_lark(lark), servable=True, guided_grammar=lark)


def _function(draw: random.Random) -> dict[str, Any]:
    name = draw.choice(["f", "get_weather", "a-b_C9"])
    function = {"name": name, "description": hostile_text(draw), "parameters": small_object(draw)}
    return function | ({"strict": True} if draw.random() < 0.5 else {})


def _tool(draw: random.Random) -> HostileCase:
    function = _function(draw)
    choice: Any = draw.choice(["required", {"type": "function", "function": {"name": function["name"]}}])
    tools = [{"type": "function", "function": function}]
    body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    return chat("tool", fits_schema(function["parameters"]), servable=True, **body)


def _completion(draw: random.Random) -> HostileCase:
    schema = small_object(draw)
    body = {"prompt": f"{hostile_text(draw)} JSON:", "max_tokens": 400, "guided_json": schema}
    return HostileCase("completion", COMPLETIONS, body, fits_schema(schema), servable=True)


def _response(draw: random.Random) -> HostileCase:
    if draw.random() < 0.5:
        schema = small_object(draw)
        form = {"type": "json_schema", "name": "s", "schema": schema}
        body = {"input": ASKED, "max_output_tokens": 400, "text": {"format": form}}
        return HostileCase("response", RESPONSES, body, fits_schema(schema), servable=True)
    function = _function(draw)
    body = {"input": ASKED, "max_output_tokens": 400, "tools": [{"type": "function", **function}],
            "tool_choice": "required", "parallel_tool_calls": False}  # fmt: skip
    return HostileCase("response tool", RESPONSES, body, fits_schema(function["parameters"]), servable=True)


def _message(draw: random.Random) -> HostileCase:
    function = _function(draw)
    tool = {"name": function["name"], "description": "d", "input_schema": function["parameters"]}
    messages = [{"role": "user", "content": ASKED}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    body = {"messages": messages, "max_tokens": 400, "tools": [tool], "tool_choice": choice}
    return HostileCase("message tool", MESSAGES, body, fits_schema(function["parameters"]), servable=True)


def _plain(draw: random.Random) -> HostileCase:
    messages = [{"role": "user", "content": hostile_text(draw, 12) or "x"}]
    stop = [text for _ in range(3) if (text := hostile_text(draw))][:4] or ["x"]
    biases = {str(draw.randrange(2_048)): draw.choice([-100, -1.5, 0, 100]) for _ in range(20)}
    variables = {"custom": {hostile_text(draw): [hostile_text(draw)]}, "enable_thinking": draw.random() < 0.5}
    body = {"stop": stop, "logit_bias": biases, "chat_template_kwargs": variables, "messages": messages}
    return chat("plain", _ends_anyhow, servable=True, **body, max_tokens=12)


def _ends_anyhow(text: str) -> bool:
    return isinstance(text, str)
