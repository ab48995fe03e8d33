"""Builders of bodies, and the variants that several APIs share."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.contract.corpus.exchange import Later, Request
from tests.contract.corpus.senders.http import Http

JSON = dict[str, Any]
LIMIT_S = 3.0  # of requests that never end; a busy machine takes a part of it before a group has them
Steps = Request | Later | Sequence[Request | Later]
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
HELLO: list[JSON] = [{"role": "user", "content": "Hello"}]
CITY: JSON = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Bonn"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
WEATHER: JSON = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
CLOCK: JSON = {"name": "time", "parameters": {"type": "object", "properties": {}}}
TOOLS: list[JSON] = [{"type": "function", "function": tool} for tool in (WEATHER, CLOCK)]
PATCH_TOOL: JSON = {"type": "custom", "custom": {"name": "patch", "description": "Changes files."}}
USAGE: JSON = {"stream": True, "stream_options": {"include_usage": True}}
IDS: JSON = {"stream": True, "stream_options": {"include_event_ids": True}}
# fields of both completion routes
VARIANTS: dict[str, JSON] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "two choices": {"n": 2},
    "a stop string": {"stop": " brown", "max_tokens": 20},
    "several stop strings": {"stop": ["nothing", "fox"], "max_tokens": 20},
    "a stop token": {"stop_token_ids": [300], "ignore_eos": True},
    "token ids": {"return_token_ids": True},
    "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3},
    "penalties": {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5},
    "biases": {"logit_bias": {"5": 10}, "min_tokens": 2},
    "fields that change nothing": {
        "user": "ada",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
    },
    "fields that are left out": {"prediction": {"type": "content", "content": "x"}, "speed": "fast"},
    "an unknown field": {"frobnicate": {"deeply": [1]}},
    "a priority": {"priority": 3},
    "a priority above the highest": {"priority": -3},
    "a time limit": {"timeout": 60},
    "a truncated prompt": {"truncate_prompt_tokens": 4},
    "a regular expression": {"structured_outputs": {"regex": "[0-9]{3}-[ab]"}, "max_tokens": 20},
    "a choice": {"structured_outputs": {"choice": ["yes", "yes and no"]}, "max_tokens": 20},
    "a grammar": {"guided_grammar": 'root ::= "a" [0-9] "z"', "max_tokens": 20},
    "a schema": {"guided_json": CITY, "max_tokens": 40},
    "an object": {"response_format": {"type": "json_object"}, "max_tokens": 6},
}


def chat(**fields: Any) -> JSON:
    """The body of a chat completion."""
    return {"model": "demo", "messages": HELLO, "max_tokens": 5, "temperature": 0} | fields


def text(**fields: Any) -> JSON:
    """The body of a completion."""
    return {"model": "demo", "prompt": "Once upon", "max_tokens": 5, "temperature": 0} | fields


def response(**fields: Any) -> JSON:
    """The body of a response."""
    return {"model": "demo", "input": "Hello", "max_output_tokens": 5, "temperature": 0} | fields


def message(**fields: Any) -> JSON:
    """The body of Anthropic's API."""
    return {"model": "demo", "messages": HELLO, "max_tokens": 5, "temperature": 0} | fields


def posts(path: str, bodies: Mapping[str, Any], **options: Any) -> dict[str, Steps]:
    """A request for each body."""
    return {name: Http(path, body, **options) for name, body in bodies.items()}


def streamed_and_whole(path: str, bodies: Mapping[str, JSON]) -> dict[str, Steps]:
    """Each body whole and as a stream."""
    found: dict[str, Steps] = {}
    for name, body in bodies.items():
        several = path == TEXT and isinstance(body["prompt"], list) and not isinstance(body["prompt"][0], int)
        found[name] = Http(path, body)
        found[f"{name}, streamed"] = Http(path, body | {"stream": True}, by_choice=several)
    return found
