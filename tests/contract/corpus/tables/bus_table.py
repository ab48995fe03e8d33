"""Whole answers by one request on the bus, and generations without a gateway."""

from typing import Any

from shared import subjects
from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.bus import Call, Generate
from tests.contract.corpus.tables.bodies import CITY, HELLO, LIMIT_S, TOOLS, VARIANTS, Steps

_CHAT = {"messages": HELLO, "max_tokens": 5, "temperature": 0}
_TEXT = {"prompt": "Once upon", "max_tokens": 5, "temperature": 0}


def turn(session: str, **headers: str) -> Call:
    """A turn of a session."""
    return Call(_CHAT, headers={"X-Session-Id": session, **headers})


EXCHANGES: dict[str, Steps] = {
    **{f"a chat, {name}": Call(_CHAT | fields) for name, fields in VARIANTS.items()},
    "a text": Call(_TEXT),
    "several texts": Call(_TEXT | {"prompt": ["One", "Two"], "max_tokens": 2}),
    "a text with log probabilities": Call(_TEXT | {"logprobs": 1, "echo": True}),
    "an embedding": Call({"input": "Hello", "dimensions": 3}),
    "a prompt of ids": Call({"prompt_token_ids": [0, 5], "max_tokens": 3}),
    "log probabilities": Call(_CHAT | {"logprobs": True, "top_logprobs": 1}),
    "calls": Call(_CHAT | {"tools": TOOLS}, model="calls"),
    "reasoning": Call(_CHAT, model="thinks"),
    "a required call": Call(
        _CHAT | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}
    ),
    "a strict schema": Call(
        _CHAT
        | {
            "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
            "max_tokens": 40,
        }
    ),
    "an answer that goes on": Call(
        {
            "messages": [*HELLO, {"role": "assistant", "content": "The"}],
            "continue_final_message": True,
            "max_tokens": 3,
        }
    ),
    "another name of the model": Call(_CHAT, model="gpt-5"),
    "a name with other letters": Call(_CHAT, model="acme/no.such"),
    "the model in both": Call(_CHAT | {"model": "demo"}),
    "another model in the body": Call(_CHAT | {"model": "words"}),
    "a session": [turn("a"), turn("a"), turn("a", **{"X-Session-Mode": "replace"})],
    "a condition of a session": turn("b", **{"X-Session-Must-Exist": "true"}),
    "a condition in the body": Call(_CHAT | {"session_id": "b", "session_must_exist": True}),
    "repeats": [Call(_CHAT | fields, headers={"Idempotency-Key": "k1"}) for fields in ({}, {}, {"n": 2})],
    "the id of the request": Call(_CHAT, headers={"X-Request-Id": "mine"}),
    "a time limit": Call(_CHAT, model="stuck", headers={"Ryz-Timeout-Ms": str(int(LIMIT_S * 1000))}),
    "a wrong time limit": Call(_CHAT, headers={"Ryz-Timeout-Ms": "soon"}),
    "a time limit of HTTP": Call(_CHAT, headers={"X-Request-Timeout": "none"}),
    "no key": Call(_CHAT, key=""),
    "a wrong key": Call(_CHAT, key="key-of-nobody"),
    "a late refusal": Call(_CHAT, model="refuses-late"),
    "a full group": Call(_CHAT, model="full"),
    "a group that breaks": Call(_CHAT, model="breaks"),
    "a poisoned request": Call(_CHAT, model="poisoned"),
    "an unknown model": Call(_CHAT, model="nobody"),
    "no JSON": Call(b"\xc1"),
    "a list": Call([1]),
    "nested deeply": Call(b"[" * 100_000),
    "nothing": Call({}),
    "two kinds": Call(_CHAT | {"prompt": "x"}),
    "a stream": Call(_CHAT | {"stream": True}),
    "a background": Call(_CHAT | {"background": True}),
    "a wrong type": Call(_CHAT | {"temperature": "hot"}),
    "a wrong limit": Call(_CHAT | {"max_tokens": 0}),
    "a misspelt field": Call(_CHAT | {"temperatur": 1}),
    "a wrong choice of a tool": Call(_CHAT | {"tools": TOOLS, "tool_choice": "sometimes"}),
    "a broken schema": Call(_CHAT | {"guided_json": {"type": "strang"}}),
    "too many tokens": Call({"prompt": "word " * 4000}),
    "the models": Call({}, subject=subjects.MODELS),
}
TABLE = table("bus", EXCHANGES, side_by_side=True)


def _direct(name: str, model: str = "demo", **fields: Any) -> Generate:
    sampling = {"max_tokens": 5, "temperature": 0.0} | fields.pop("sampling", {})
    given: dict[str, Any] = {"request_id": f"direct-{name}", "sampling": sampling} | fields
    if not given.keys() & {"prompt", "prompt_token_ids", "messages"}:
        given["messages"] = HELLO
    return Generate(given, model)


_WEATHER = {"name": "weather", "parameters": '{"type": "object", "properties": {"city": {"enum": ["Ulm"]}}}'}
DIRECT = table(
    "direct",
    {
        "a chat": _direct("chat"),
        "a text": _direct("text", prompt="Once upon"),
        "two choices": _direct("two", sampling={"n": 2}),
        "a stop string": _direct("stop", sampling={"stop": [" brown"], "max_tokens": 20}),
        "log probabilities": _direct("logprobs", sampling={"logprobs": 1}),
        "the ids of the prompt": _direct("ids", prompt_ids=True),
        "an echo": _direct("echo", prompt="Once upon", echo=True),
        "an embedding": _direct("embedding", prompt="Hello", embedding={"dimensions": 3}),
        "a whole answer": _direct("whole", delivery="whole"),
        "a choice of texts": _direct("choice", structured={"kind": "choice", "choices": ["yes", "no"]}),
        "a required call": _direct(
            "call",
            sampling={"max_tokens": 60},
            tools={"tools": [_WEATHER], "choice": "required", "parallel": False},
        ),
        "a session": [
            _direct("turn-1", session={"session_id": "a", "given": True}),
            _direct("turn-2", session={"session_id": "a", "given": True}),
        ],
        "a condition": _direct("condition", session={"session_id": "b", "given": True, "must_exist": True}),
        "an answer that goes on": _direct(
            "on", messages=[*HELLO, {"role": "assistant", "content": "The"}], continues=True
        ),
        "an unknown model": _direct("nobody", "nobody"),
        "no prompt": Generate({"request_id": "direct-nothing"}),
        "two prompts": _direct("both", prompt="x", messages=HELLO),
        "a prompt that is too long": _direct("long", prompt="word " * 4000),
        "a broken expression": _direct("regex", structured={"kind": "regex", "definition": "(a"}),
        "calls": _direct("calls", "calls"),
        "a group that breaks": _direct("breaks", "breaks"),
    },
)
