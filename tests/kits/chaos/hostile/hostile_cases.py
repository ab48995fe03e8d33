"""Requests that are wrong, huge, contradictory or nonsense; each is answered or refused by name."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.kits.chaos.hostile.hostile_case import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    WORDS,
    HostileCase,
    chat,
    fits_schema,
)
from tests.kits.chaos.hostile.servable_cases import hostile_text, small_object

_TOKENS = 24  # of answers that have no end of their own
_PIECES = (
    "a", "b", "[a-z]", "[^a]", "(", ")", "(?:", "(?=", "(?<!", "(?i)", "(?-u:", "|", "*", "+", "?", "{3}",
    "{2,}", "{,5}",
    "{1000}", "{99999}", "{10,1}", "\\d", "\\w", "\\b", "\\1", "\\p{L}", "\\x04", "\\x{50000}", "\\xff",
    "\\u0000", "^",
    "$", ".", "[", "]", "[^\\s\\S]", "<\\|im_end\\|>", "\\", "/", "\x00", "é", "\n", "(?s:.)*",
)  # fmt: skip
_LARK = (
    "start: a", "start: a b", "start: A+", "start: start a", "start:", "a: \"x\"", "a: b | a",
    "b: \"<|im_end|>\"", "A: /a+/",
    "A: /[^\\s\\S]/", "A: B & ~B", "B: /(a|b)*/", "%ignore /\\s+/", "%import common.WORD", "%json {}",
    "@x", "a: <[2]>",
    "a: <|im_end|>", "// ::=", "# <[3]>", "start[max_tokens=2]: /.*/", "a[suffix=\"x\"]: /.*/",
    "a: /x\ny/ <[4]> /z/",
    "root ::= \"a\" root | [a-z]", "root ::= [^\\x00-\\xff]", "a ::= ~", "a{100000}", "start: \"\\x04\"",
    "start: \"\"",
    "start: %regex {\"substring_words\": \"a b\"}", "%llguidance {}", "start: a~3..9", "\x00",
    "start: \"é\" /\\x{50000}/",
    "start: ((((\"a\"))))", "start: \"a\"{10,2}", "start: \"x\"* /x*/",
)  # fmt: skip
_AMBIGUOUS = (
    'root ::= root root | "a" | ""', 'root ::= root root root | "a"', 'start: "a" start | start start | ""',
    'root ::= root root | root root root | "a" | "aa" | ""',
)  # fmt: skip
_KEYWORDS = (
    "type", "const", "enum", "properties", "required", "items", "prefixItems", "minItems", "maxItems",
    "minLength",
    "maxLength", "pattern", "format", "minimum", "maximum", "multipleOf", "$ref", "$defs", "anyOf",
    "oneOf", "allOf",
    "not", "if", "then", "else", "additionalProperties", "patternProperties", "propertyNames",
    "dependentRequired",
    "uniqueItems", "contains", "title", "default", "$id", "$anchor", "$dynamicRef", "unevaluatedProperties",
    "exclusiveMinimum", "minProperties", "maxProperties", "<|im_end|>", "x-guidance", "nullable",
    "examples",
)  # fmt: skip
_TYPES: tuple[Any, ...] = (
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "array",
    "object",
    "strang",
    ["string", "null"],
    [],
    7,
)
_REFS = ("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/nowhere", "http://x/y", "#a", "##", "#/%20", "/")
_FORMATS = ("date", "date-time", "uuid", "email", "ipv4", "regex", "uri", "nonsense", "<|im_end|>", "")


def hostile_case(number: int) -> HostileCase:
    """Returns the case of a number; all cases of one number are equal."""
    draw = random.Random(f"hostile {number}")
    kinds = (
        _schema, _schema, _schema, _bomb, _regex, _pattern, _grammar, _grammar, _choice, _tools, _tools,
        _variables,
        _sampling, _sampling, _text, _raw, _ids, _other_api, _mixed,
    )  # fmt: skip
    return kinds[number % len(kinds)](draw)


def wild_value(draw: random.Random, depth: int = 0) -> Any:
    """Returns any JSON value."""
    scalars = (
        None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**30, 1e308, -0.0, 1.5, hostile_text(draw),
        draw.choice(WORDS),
        "x" * draw.choice([1, 300]),
    )  # fmt: skip
    if depth > 3 or draw.random() < 0.6:
        return draw.choice(scalars)
    values = [wild_value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return values if draw.random() < 0.5 else {hostile_text(draw): value for value in values}


def wild_schema(draw: random.Random, depth: int = 0) -> Any:
    """Returns a schema, or what looks like one: any keywords with right and wrong values."""
    if depth > 4 or draw.random() < 0.05:
        return draw.choice([True, False, {}, None, "x", []])
    made: dict[str, Any] = {}
    for _ in range(draw.randint(1, 4)):
        key = draw.choice(_KEYWORDS)
        made[key] = _value_of(draw, key, depth + 1)
    return made


def _value_of(draw: random.Random, key: str, depth: int) -> Any:
    if draw.random() < 0.08:
        return wild_value(draw)
    if key.startswith(("min", "max", "exclusive")):
        return draw.choice([0, 1, 2, 5, 40, -1, 10**9, 1.5, 2**64])
    makers = _MAKERS.get(key)
    return wild_value(draw) if makers is None else makers(draw, depth)


def _schemas(draw: random.Random, depth: int) -> Any:
    return [wild_schema(draw, depth) for _ in range(draw.randint(0, 3))]


def _named(draw: random.Random, depth: int) -> Any:
    names = [draw.choice(["a", "b", hostile_text(draw)]) for _ in range(draw.randint(0, 3))]
    return {name: wild_schema(draw, depth) for name in names}


def _wild_regex(draw: random.Random) -> str:
    return "".join(draw.choice(_PIECES) for _ in range(draw.randint(1, 9)))


_MAKERS: dict[str, Callable[[random.Random, int], Any]] = {
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _schemas),
    **dict.fromkeys(("properties", "patternProperties", "$defs"), _named),
    **dict.fromkeys(("items", "not", "if", "then", "else", "contains", "propertyNames"), wild_schema),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), wild_schema),
    "type": lambda draw, _: draw.choice(_TYPES),
    "$ref": lambda draw, _: draw.choice(_REFS),
    "format": lambda draw, _: draw.choice(_FORMATS),
    "enum": lambda draw, _: [wild_value(draw) for _ in range(draw.randint(0, 4))],
    "required": lambda draw, _: draw.choices(["a", "b", hostile_text(draw)], k=draw.randint(0, 3)),
    "pattern": lambda draw, _: _wild_regex(draw),
    "multipleOf": lambda draw, _: draw.choice([0, 1, 3, 0.01, 99991, -1]),
}


def _form(draw: random.Random, schema: Any) -> dict[str, Any]:
    strict = {"strict": draw.choice([True, False, None])} if draw.random() < 0.5 else {}
    return draw.choice(
        [
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": schema, **strict},
                }
            },
            {"structured_outputs": {"json": schema}},
            {"guided_json": schema},
            {"guided_json": json.dumps(schema)},
        ]
    )


def _schema(draw: random.Random) -> HostileCase:
    return chat("schema", **_form(draw, wild_schema(draw)), max_tokens=_TOKENS)


def _bomb(draw: random.Random) -> HostileCase:
    size = draw.choice([30, 300, 3000])
    inner: Any = {"type": "integer"}
    for depth in range(min(size, 300)):
        modes = [
            {"type": "array", "items": inner},
            {"anyOf": [inner, inner]} if depth < 9 else {"not": inner},
        ]
        inner = draw.choice(modes)
    names = [f"p{index}" for index in range(size)]
    bombs: list[Any] = [
        inner,
        {"type": "object", "properties": {key: {"type": "string"} for key in names}},
        {"enum": [f"{name}<|im_end|>" for name in names]},
        {
            "$ref": "#/$defs/p0",
            "$defs": {name: {"$ref": f"#/$defs/p{index + 1}"} for index, name in enumerate(names)},
        },
        {"allOf": [{"pattern": f"^.*{name}.*$"} for name in names], "type": "string"},
        {"oneOf": [{"type": "object", "properties": {name: {"const": 1}}} for name in names]},
        {"type": "string", "pattern": f"^({'a?' * size}){{{size}}}$"},
        {"type": "string", "pattern": f"^(a|aa|aaa|a*){{{size}}}b$"},
        {"type": "string", "minLength": size * 50},
        {
            "type": "array",
            "items": {"type": "array", "minItems": size, "items": {"const": 1}},
            "minItems": size,
        },
        {"type": "integer", "multipleOf": size * 7 + 1, "minimum": -(10**size)},
        {"type": "object", "patternProperties": {f"^.*{name}": True for name in names}},
    ]
    return chat("bomb", **_form(draw, draw.choice(bombs)), max_tokens=_TOKENS)


def _regex(draw: random.Random) -> HostileCase:
    regex: Any = _wild_regex(draw) if draw.random() < 0.9 else wild_value(draw)
    return chat(
        "regex",
        **draw.choice([{"guided_regex": regex}, {"structured_outputs": {"regex": regex}}]),
        max_tokens=_TOKENS,
    )


def _pattern(draw: random.Random) -> HostileCase:
    return chat(
        "pattern", **_form(draw, {"type": "string", "pattern": _wild_regex(draw)}), max_tokens=_TOKENS
    )


def _grammar(draw: random.Random) -> HostileCase:
    if draw.random() < 0.04:  # their parsers grow with each token until a limit is met
        return chat("ambiguous", guided_grammar=draw.choice(_AMBIGUOUS), max_tokens=400)
    lines = [draw.choice(_LARK) for _ in range(draw.randint(1, 5))]
    if draw.random() < 0.5:
        lines = ["start: a", *lines, 'a: "z"'] if draw.random() < 0.5 else [*lines, "start: A", "A: /z+/"]
    grammar: Any = draw.choice(["\n", " ", "\n\n"]).join(lines)
    if draw.random() < 0.2:
        position = draw.randrange(len(grammar))
        grammar = grammar[:position] + draw.choice(_PIECES) + grammar[position + 1 :]
    return chat(
        "grammar",
        **draw.choice([{"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}]),
        max_tokens=_TOKENS,
    )


def _choice(draw: random.Random) -> HostileCase:
    pool: list[Any] = ["\x00", "a\x04b", "\U00050000", "\x7f", "\r\n", "x" * draw.choice([10, 9000]), *WORDS]
    choices: Any = [draw.choice(pool) for _ in range(draw.choice([0, 1, 3, 200, 5000]))]
    if draw.random() < 0.1:
        choices = wild_value(draw)
    return chat(
        "choice",
        **draw.choice([{"guided_choice": choices}, {"structured_outputs": {"choice": choices}}]),
        max_tokens=_TOKENS,
    )


def _tools(draw: random.Random) -> HostileCase:
    tools: list[Any] = []
    for _ in range(draw.choice([0, 1, 1, 2, 5, 130])):
        name = draw.choice(["f", "g", "f_1", "<|im_end|>", "a b", "", "x" * 65, "é", hostile_text(draw)])
        parameters = draw.choice([wild_schema(draw), wild_value(draw), small_object(draw), None])
        function: Any = {"name": name, "parameters": parameters, "description": hostile_text(draw)}
        if draw.random() < 0.5:
            function["strict"] = draw.choice([True, False, 1, "yes"])
        tools.append({"type": draw.choice(["function"] * 9 + ["web_search"]), "function": function})
    named = {"type": "function", "function": {"name": draw.choice(["f", "g", "<|im_end|>"])}}
    choice = draw.choice(["auto", "required", "none", named, "always", None, 7])
    body: dict[str, Any] = {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": draw.choice([True, False, None]),
    }
    return chat("tools", **body, max_tokens=_TOKENS)


def _variables(draw: random.Random) -> HostileCase:
    names = ("messages", "tools", "bos_token", "add_generation_prompt", "custom", "loop", "self", "range",
    "namespace",
             "a b", "__class__", "enable_thinking", "thinking_budget", "x" * 70, "strftime_now",
             "<|im_end|>")  # fmt: skip
    jinja = (
        "{{ 7*7 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler }}",
    )
    variables: Any = {
        draw.choice(names): draw.choice([wild_value(draw), draw.choice(jinja)])
        for _ in range(draw.choice([0, 1, 3]))
    }
    if draw.random() < 0.1:
        variables = draw.choice([wild_value(draw), {f"v{n}": n for n in range(70)}, {"v": "x" * 70_000}])
    return chat("variables", chat_template_kwargs=variables, max_tokens=4)


def _sampling(draw: random.Random) -> HostileCase:
    fields = ("temperature", "top_p", "top_k", "min_p", "n", "seed", "presence_penalty",
    "frequency_penalty",
              "repetition_penalty", "logit_bias", "stop", "stop_token_ids", "max_tokens", "min_tokens",
              "logprobs",
              "top_logprobs", "max_completion_tokens", "stream", "stream_options", "user", "timeout",
              "priority",
              "truncate_prompt_tokens", "reasoning_effort", "response_format", "ignore_eos", "best_of",
              "suffix")  # fmt: skip
    body: dict[str, Any] = {}
    for _ in range(draw.randint(1, 4)):
        field = draw.choice(fields)
        body[field] = wild_value(draw)
    if draw.random() < 0.4:
        ids = draw.choice([{"0": -100, "2": -100, "4": -100}, {"49152": 1}, {"-1": 1}, {"x": 1},
        {"5": 1e400}, {"7": 101},
                           {str(n): -100 for n in range(1200)}])  # fmt: skip
        body["logit_bias"] = ids
    if draw.random() < 0.3:
        body["stop"] = draw.choice(
            [[""], ["<|im_end|>"], ["\x00"], ["a"] * 40, "x" * 5000, [1], None, "", ["\U00050000"]]
        )
    return chat("sampling", **{"max_tokens": 6, **body, "stream": False, "timeout": 120, "n": 1})


def _text(draw: random.Random) -> HostileCase:
    text = draw.choice(
        [
            hostile_text(draw, 40),
            "\x00" * 50,
            "a\x04\x7f\x80",
            "\u0301" * 500,
            "\U0001d54f" * 300,
            " " * 3000,
            "{{" * 200,
        ]
    )
    role = draw.choice(
        ["user", "system", "assistant", "tool", "developer", "function", "<|im_end|>", "", None]
    )
    message: Any = {
        "role": role,
        "content": draw.choice([text, [{"type": "text", "text": text}], None, wild_value(draw)]),
    }
    if draw.random() < 0.3:
        message["name"] = hostile_text(draw)
    if draw.random() < 0.2:
        message["tool_calls"] = draw.choice(
            [
                wild_value(draw),
                [{"id": text, "type": "function", "function": {"name": "f", "arguments": text}}],
            ]
        )
    messages = [message] * draw.choice([1, 1, 2, 200])
    return chat("text", messages=messages, max_tokens=4)


def _raw(draw: random.Random) -> HostileCase:
    schema = ["[" * 100_000, '{"type":"object","properties":' * 5000, '{"const":"\\ud800"}',
    '{"enum":["\\udc00\\ud83d"]}',
              '{"const":1e400}', '{"const":NaN}', '{"const":"\\u0000"}', '{"a":1,"a":2}',
              '{"const":' + "9" * 5000 + "}",
              '"\\ud83d\\ude00"', '{"type":"string","pattern":"\\ud800"}',
              '{"properties":{"\\udfff":{}},"required":["\\udfff"]}']  # fmt: skip
    template = ['"guided_json":%s', '"structured_outputs":{"json":%s}', '"chat_template_kwargs":{"x":%s}',
    '"stop":[%s]',
             '"tools":[{"type":"function","function":{"name":"f","parameters":%s}}],"tool_choice":"required"',
             '"guided_choice":["\\ud800",%s]', '"logit_bias":{"5":%s}', '"temperature":%s',
             '"user":"\\ud800","x":%s']  # fmt: skip
    content = draw.choice(['"hi"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"'])
    text = f'{{"model":"smollm2-135m","max_tokens":4,"messages":[{{"role":"user","content":{content}}}],'
    body = text + draw.choice(template) % draw.choice(schema) + draw.choice(["}", "}", "}", ""])
    data = body.encode()
    if draw.random() < 0.1:
        data = data.replace(b"hi", b"\xff\xc0")
    return HostileCase("raw", CHAT, data)


def _ids(draw: random.Random) -> HostileCase:
    ids = [0, 1, 2, 4, 49_151, 49_152, -1, 2**31, 2**40, 1.5, "7", None, True]
    prompt: Any = [draw.choice(ids[: draw.choice([5, 13])]) for _ in range(draw.randint(0, 6))]
    if draw.random() < 0.3:
        prompt = draw.choice([[prompt, prompt], [], "", [[]], wild_value(draw), "<|im_end|>" * 20])
    body = {
        "prompt": prompt,
        "max_tokens": 4,
        "echo": draw.choice([True, False]),
        "stop_token_ids": [draw.choice(ids)],
    }
    if draw.random() < 0.5:
        del body["stop_token_ids"]
    if draw.random() < 0.3:
        body["prompt_logprobs"] = draw.choice([0, 1, 30, -2])
    return HostileCase("ids", COMPLETIONS, body)


def _other_api(draw: random.Random) -> HostileCase:
    schema = draw.choice([wild_schema(draw), small_object(draw)])
    name = draw.choice(["f", "<|im_end|>", "a b"])
    if draw.random() < 0.5:
        body: dict[str, Any] = {"input": draw.choice(["x", wild_value(draw)]), "max_output_tokens": _TOKENS}
        if draw.random() < 0.5:
            body["text"] = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
        else:
            body["tools"] = [{"type": "function", "name": name, "parameters": schema}]
            body["tool_choice"] = draw.choice(["auto", "required", {"type": "function", "name": "f"}])
        return HostileCase("responses", RESPONSES, body)
    messages = [{"role": "user", "content": draw.choice(["x", wild_value(draw)])}]
    tool = {"name": name, "input_schema": schema}
    kind = draw.choice(["auto", "any", "tool", "none", "x"])
    body = {"messages": messages, "max_tokens": _TOKENS, "tools": [tool], "tool_choice": {"type": kind,
    "name": "f"},
            "stop_sequences": draw.choice([["<|im_end|>"], [""], [], ["\x00"]])}  # fmt: skip
    return HostileCase("messages", MESSAGES, body)


def _mixed(draw: random.Random) -> HostileCase:
    """A form that is right, beside sampling and other demands that may contradict it."""
    schema = small_object(draw)
    body: dict[str, Any] = {
        **_form(draw, schema),
        "logit_bias": {str(n): -100 for n in draw.sample(range(49_152), 40)}
        | {"0": 100, "2": 100, "4": -100},
        "stop": [draw.choice(["{", '"', "<|im_end|>", "}"])],
        "n": draw.choice([1, 2]),
        "temperature": draw.choice([0, 1, 2]),
        "repetition_penalty": draw.choice([0.01, 1, 2]),
        "min_tokens": draw.choice([0, 50]),
        "top_k": draw.choice([1, -1]),
        "logprobs": draw.choice([True, False]),
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "reasoning_effort": draw.choice(["low", "none"]),
    }
    for key in draw.sample(sorted(body), draw.randint(2, 8)):
        del body[key]
    bound = bool(body.keys() & {"response_format", "structured_outputs", "guided_json"})
    bound = bound and not body.keys() & {"stop", "tools", "n"}
    return chat("mixed", fits_schema(schema) if bound else None, **body, max_tokens=60)
