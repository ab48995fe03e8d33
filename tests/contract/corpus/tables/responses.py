"""The Responses API: whole, as events, stored, continued, in the background, on its WebSocket."""

from collections.abc import Callable
from typing import Any

from tests.contract.corpus.exchange import Heard, Later, table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.senders.websocket import Socket, Until
from tests.contract.corpus.tables.bodies import (
    CITY,
    CLOCK,
    RESPONSES,
    WEATHER,
    posts,
    response,
    streamed_and_whole,
)

_TOOLS = [{"type": "function", **tool} for tool in (WEATHER, CLOCK)]
_FORMAT = {"format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}}
_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}'}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
_USER = {"role": "user", "content": "Hello"}
_END = Until(("response.completed", "response.incomplete", "response.failed", "error"))


def of(path: str, step: int = 0, **options: Any) -> Later:
    """A request about the response that a step made; `{id}` in the path stands for its id."""
    return lambda heard: Http(path.replace("{id}", heard[step].json["id"]), **options)


def ended(heard: Heard) -> bool:
    """Whether a response has ended."""
    return heard.json.get("status") not in ("queued", "in_progress")


def follows(step: int, **fields: Any) -> Later:
    """A response that continues the one of a step."""
    return lambda heard: Http(RESPONSES, response(previous_response_id=heard[step].json["id"], **fields))


def _first_id(step: int) -> Callable[[list[Heard]], str]:
    return lambda heard: str(heard[step].json["first_id"])


_NEW = Http(RESPONSES, response())
_BACKGROUND = Http(RESPONSES, response(background=True))
_DONE = of(f"{RESPONSES}/{{id}}", until=ended)

TABLE = table(
    "responses",
    {
        **streamed_and_whole(
            RESPONSES,
            {
                "plain": response(),
                "not stored": response(store=False),
                "instructions": response(instructions="Be brief."),
                "items": response(input=[_USER, {"role": "assistant", "content": "Hi"}, _USER]),
                "parts": response(
                    input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
                ),
                "a developer's item": response(input=[{"role": "developer", "content": "Be brief."}, _USER]),
                "a call and its result": response(input=[_USER, _CALL, _OUTPUT], tools=_TOOLS),
                "log probabilities": response(include=["message.output_text.logprobs"], top_logprobs=1),
                "a schema": response(text=_FORMAT, max_output_tokens=40),
                "an object": response(text={"format": {"type": "json_object"}}),
                "tools, auto": response(tools=_TOOLS),
                "tools, required": response(
                    tools=_TOOLS, tool_choice="required", parallel_tool_calls=False, max_output_tokens=80
                ),
                "a named tool": response(
                    tools=_TOOLS, tool_choice={"type": "function", "name": "weather"}, max_output_tokens=80
                ),
                "a named tool that is cut": response(
                    tools=_TOOLS, tool_choice={"type": "function", "name": "weather"}, max_output_tokens=24
                ),
                "tools that are left out": response(tools=[*_TOOLS, {"type": "web_search"}], verbosity="low"),
                "calls": response(model="calls", tools=_TOOLS),
                "reasoning": response(model="thinks"),
                "reasoning and calls": response(
                    model="thinks-and-calls", tools=_TOOLS, reasoning={"effort": "low"}
                ),
                "a custom tool": response(model="patches", tools=[{"type": "custom", "name": "patch"}]),
                "fields that change nothing": response(
                    metadata={"a": "b"},
                    user="ada",
                    service_tier="auto",
                    prompt_cache_key="k",
                    safety_identifier="s",
                    max_tool_calls=3,
                ),
                "an unknown field": response(frobnicate=1),
                "sampling": response(
                    temperature=0.7, top_p=0.9, presence_penalty=1, frequency_penalty=1, seed=3
                ),
                "a truncation": response(truncation="auto"),
                "another name of the model": response(model="gpt-5"),
                "a priority": response(priority=-2),
                "a group that breaks": response(model="breaks"),
            },
        ),
        **posts(
            RESPONSES,
            {
                "a late refusal": response(model="refuses-late"),
                "a full group": response(model="full"),
                "an unknown model": response(model="nobody"),
                "more choices": response(n=2),
                "a field of chat completions": response(max_tokens=3),
                "messages in place of input": {"model": "demo", "messages": [_USER]},
                "an image": response(
                    input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
                ),
                "a wrong type": response(temperature="hot"),
                "no input": {"model": "demo"},
                "an empty list": response(input=[]),
                "a background that is not stored": response(background=True, store=False),
                "a choice of an unknown tool": response(
                    tools=_TOOLS, tool_choice={"type": "function", "name": "none"}
                ),
                "a previous response that is not there": response(previous_response_id="resp_none"),
                "a previous response of an odd name": response(previous_response_id="../x"),
                "a misspelt field": response(instuctions="x"),
            },
        ),
        "a stored response": [_NEW, of(f"{RESPONSES}/{{id}}")],
        "its input": [
            Http(RESPONSES, response(input=[_USER, _USER])),
            of(f"{RESPONSES}/{{id}}/input_items?order=asc"),
        ],
        "pages of its input": [
            Http(RESPONSES, response(input=[_USER, {"role": "developer", "content": "x"}, _USER])),
            of(f"{RESPONSES}/{{id}}/input_items?limit=1"),
            lambda heard: Http(
                f"{RESPONSES}/{heard[0].json['id']}/input_items?limit=2&after={_first_id(1)(heard)}"
            ),
        ],
        "wrong pages": [
            _NEW,
            of(f"{RESPONSES}/{{id}}/input_items?limit=0"),
            of(f"{RESPONSES}/{{id}}/input_items?order=up"),
            of(f"{RESPONSES}/{{id}}/input_items?after=none"),
        ],
        "events of a stored response": [
            _NEW,
            of(f"{RESPONSES}/{{id}}?stream=true"),
            of(f"{RESPONSES}/{{id}}?stream=true&starting_after=3"),
        ],
        "a response that is not stored": [
            Http(RESPONSES, response(store=False)),
            of(f"{RESPONSES}/{{id}}"),
            follows(0),
        ],
        "a deleted response": [
            _NEW,
            of(f"{RESPONSES}/{{id}}", method="DELETE"),
            of(f"{RESPONSES}/{{id}}"),
            of(f"{RESPONSES}/{{id}}", method="DELETE"),
        ],
        "of another tenant": [_NEW, of(f"{RESPONSES}/{{id}}", key="key-of-chat")],
        "a conversation": [
            _NEW,
            follows(0, input="And then?"),
            follows(1, input="And now?"),
            of(f"{RESPONSES}/{{id}}/input_items", 2),
        ],
        "a conversation of calls": [
            Http(RESPONSES, response(model="calls", tools=_TOOLS)),
            follows(
                0,
                model="words",
                tools=_TOOLS,
                input=[
                    {"type": "function_call_output", "call_id": "call_a", "output": "rain"},
                    {"type": "function_call_output", "call_id": "call_b", "output": "noon"},
                ],
            ),
        ],
        "a result that no call asked for": [_NEW, follows(0, input=[_OUTPUT])],
        "in the background": [
            _BACKGROUND,
            _DONE,
            of(f"{RESPONSES}/{{id}}?stream=true"),
            of(f"{RESPONSES}/{{id}}?stream=true&starting_after=4"),
            of(f"{RESPONSES}/{{id}}?stream=true", headers={"Last-Event-ID": "5"}),
        ],
        "in the background, streamed": Http(RESPONSES, response(background=True, stream=True)),
        "calls in the background": [
            Http(RESPONSES, response(model="calls", tools=_TOOLS, background=True)),
            _DONE,
        ],
        "a fault in the background": [
            Http(RESPONSES, response(model="breaks", background=True)),
            _DONE,
            of(f"{RESPONSES}/{{id}}?stream=true"),
        ],
        "cancelled in the background": [
            Http(RESPONSES, response(model="stuck", background=True)),
            of(f"{RESPONSES}/{{id}}/cancel", method="POST"),
            of(f"{RESPONSES}/{{id}}", until=ended),
            of(f"{RESPONSES}/{{id}}/cancel", method="POST"),
        ],
        "a cancel of one that has no background": [_NEW, of(f"{RESPONSES}/{{id}}/cancel", method="POST")],
        "a cancel of none": Http(f"{RESPONSES}/resp_none/cancel", method="POST"),
        "no such response": Http(f"{RESPONSES}/resp_none"),
        "an odd name": Http(f"{RESPONSES}/a%20b"),
        "a wrong place of events": [_NEW, of(f"{RESPONSES}/{{id}}?stream=true&starting_after=x")],
        "on its WebSocket": Socket(
            [
                {"type": "response.create", **response()},
                _END,
                {"type": "response.create", **response(stream=True, store=False)},
                _END,
            ],
            path=RESPONSES,
        ),
        "calls on its WebSocket": Socket(
            [{"type": "response.create", **response(model="calls", tools=_TOOLS)}, _END], path=RESPONSES
        ),
        "refusals on its WebSocket": Socket(
            [
                {"type": "response.create", **response(background=True)},
                _END,
                {"type": "response.create", "model": "demo"},
                _END,
                {"type": "response.cancel"},
                _END,
                "{",
                _END,
                "[]",
                _END,
                {"type": "response.create", **response(model="nobody")},
                _END,
                {"type": "response.create", **response(frobnicate=1)},
                _END,
            ],
            path=RESPONSES,
        ),
        "a WebSocket without a key": Socket([], path=RESPONSES, key=""),
    },
)
