"""Bodies that ask for what cannot or must not be served, and the field that the refusal has to name."""

from typing import Any, NamedTuple

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "Hello!"}]
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
LOOK_UP: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
NO_CALL = "c-unknown"


class BadDemand(NamedTuple):
    """A body that is refused.

    Attributes:
        name: Names the case.
        path: The route.
        body: Without `model`.
        field: A word that the message or `param` of the error has to contain.
    """

    name: str
    path: str
    body: dict[str, Any]
    field: str


def _schema(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    return {"messages": HELLO, "response_format": form}


def _nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _chat(name: str, field: str, **body: Any) -> BadDemand:
    return BadDemand(name, CHAT, {"messages": HELLO, **body}, field)


def _schemas() -> list[BadDemand]:
    bad = {
        "a schema of 500 kB": {"description": "x" * 500_000, "type": "object"},
        "1 MB of properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(35_000)}},
        "a reference to itself": {"$ref": "#"},
        "a ring of references": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "recursion without an end": {
            "type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": False,
        },
        "an unknown reference": {"$ref": "#/$defs/nowhere"},
        "a remote reference": {"$ref": "https://example.org/schema.json"},
        "an exploding regular expression": {"type": "string", "pattern": "^((((a{1,99}){1,99}){1,99}){1,99}){1,99}$"},
        "a broken regular expression": {"type": "string", "pattern": "^(a"},
        "a look-behind": {"type": "string", "pattern": "(?<=a)b"},
        "10,000 values": {"enum": [f"value number {n}" for n in range(10_000)]},
        "a deep schema": _nested(60),
        "an unknown type": {"type": "strang"},
        "a keyword that is not enforced": {"type": "array", "uniqueItems": True},
        "conditions": {"if": {"minimum": 1}, "then": {"maximum": 2}},
        "no schema at all": 7,
        "an impossible schema": {"allOf": [{"type": "string"}, {"type": "integer"}]},
        "a huge least length": {"type": "string", "minLength": 10**9},
        "huge counts": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    }  # fmt: skip
    demands = [BadDemand(name, CHAT, _schema(schema), "response_format") for name, schema in bad.items()]
    # more than the broker takes in a message, so the error names the bytes
    return [*demands, BadDemand("a schema of 1 MB", CHAT, _schema({"description": "x" * 2**20}), "bytes")]


def _forms() -> list[BadDemand]:
    choices = [f"choice {n}" for n in range(10_001)]
    lark = "start: start start | start start start"
    return [
        _chat("an unknown form", "response_format", response_format={"type": "yaml"}),
        _chat("a form without its schema", "response_format", response_format={"type": "json_schema"}),
        _chat("two forms", "structured_outputs", structured_outputs={"regex": "a", "choice": ["b"]}),
        _chat("a broken regex", "structured_outputs", structured_outputs={"regex": "(a"}),
        _chat(
            "a regex that explodes",
            "structured_outputs",
            structured_outputs={"regex": "((a{1,999}){1,999}){1,999}"},
        ),
        _chat("no choices", "structured_outputs", structured_outputs={"choice": []}),
        _chat("too many choices", "structured_outputs", structured_outputs={"choice": choices}),
        _chat("a grammar that never ends", "structured_outputs", structured_outputs={"grammar": lark}),
        _chat("a broken grammar", "structured_outputs", structured_outputs={"grammar": "start: ((("}),
    ]


def _tools() -> list[BadDemand]:
    named = {"type": "function", "function": {"name": "other"}}
    result = {"role": "tool", "tool_call_id": NO_CALL, "content": "x"}
    strict = {"name": "s", "strict": True, "parameters": {"type": "object", "not": {}}}
    return [
        _chat("two tools of one name", "tools", tools=[LOOK_UP, LOOK_UP]),
        _chat("129 tools", "tools", tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]),
        _chat("a name with spaces", "tools", tools=[{"type": "function", "function": {"name": "look up"}}]),
        _chat("parameters that are no schema", "tools", tools=[{"type": "function", "function": {"name": "f", "parameters": 3}}]),
        _chat("a strict schema that is not enforced", "tools", tools=[{"type": "function", "function": strict}]),
        _chat("a choice of an unknown tool", "tool_choice", tools=[LOOK_UP], tool_choice=named),
        _chat("required without tools", "tool_choice", tool_choice="required"),
        _chat("a result without a call", "tool_call_id", messages=[*HELLO, result]),
        _chat("a result for another call", "tool_call_id",
              messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]),
        _chat("a result without an id", "the id", messages=[*HELLO, {"role": "tool", "content": "x"}]),
        _chat("a misspelt kind of tool", "tools", tools=[{"type": "functoin"}]),
        _chat(
            "a choice of a tool that is left out",
            "tool_choice",
            tools=[LOOK_UP, {"type": "web_search"}],
            tool_choice={"type": "web_search"},
        ),
        _chat("required with no served tool", "tool_choice", tools=[{"type": "web_search"}], tool_choice="required"),
    ]  # fmt: skip


def _others() -> list[BadDemand]:
    image = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    audio = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
    twice = {"type": "function", "name": "f", "parameters": PARAMETERS}
    orphan = {"type": "function_call_output", "call_id": NO_CALL, "output": "x"}
    strict = {"type": "json_schema", "name": "x", "schema": {"not": {}}, "strict": True}
    use = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": NO_CALL, "content": "x"}]}
    tool = {"name": "f", "input_schema": PARAMETERS}
    short = {"max_tokens": 4, "messages": HELLO}
    return [
        _chat("an image", "image", messages=[{"role": "user", "content": image}]),
        _chat("audio", "audio", messages=[{"role": "user", "content": audio}]),
        _chat("logprobs without asking", "logprobs", top_logprobs=3),
        _chat("more minimum than maximum", "min_tokens", min_tokens=9, max_tokens=3),
        BadDemand("n with background", RESPONSES, {"input": "x", "background": True, "n": 2}, "n"),
        BadDemand(
            "background without store", RESPONSES, {"input": "x", "background": True, "store": False}, "store"
        ),
        BadDemand(
            "two tools of one name (responses)", RESPONSES, {"input": "x", "tools": [twice, twice]}, "tools"
        ),
        BadDemand("an output without a call", RESPONSES, {"input": [orphan]}, "call_id"),
        BadDemand(
            "a schema that is not enforced",
            RESPONSES,
            {"input": "x", "text": {"format": strict}},
            "text.format",
        ),
        BadDemand(
            "an unknown previous response",
            RESPONSES,
            {"input": "x", "previous_response_id": "resp_x"},
            "previous",
        ),
        BadDemand("no input", RESPONSES, {}, "input"),
        BadDemand("no max_tokens", MESSAGES, {"messages": HELLO}, "max_tokens"),
        BadDemand(
            "a result without a use", MESSAGES, {"max_tokens": 4, "messages": [*HELLO, use]}, "tool_use_id"
        ),
        BadDemand("two tools of one name (messages)", MESSAGES, {**short, "tools": [tool, tool]}, "tools"),
        BadDemand(
            "an unknown named tool",
            MESSAGES,
            {**short, "tools": [tool], "tool_choice": {"type": "tool", "name": "g"}},
            "tool_choice",
        ),
        BadDemand("embeddings of nothing", EMBEDDINGS, {"input": []}, "input"),
        BadDemand("negative dimensions", EMBEDDINGS, {"input": "x", "dimensions": -1}, "dimensions"),
        BadDemand(
            "an unknown encoding", EMBEDDINGS, {"input": "x", "encoding_format": "hex"}, "encoding_format"
        ),
    ]


BAD_DEMANDS = (*_schemas(), *_forms(), *_tools(), *_others())
