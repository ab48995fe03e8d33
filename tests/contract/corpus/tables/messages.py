"""Anthropic's Messages API and its count of tokens."""

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import (
    CITY,
    HELLO,
    MESSAGES,
    message,
    posts,
    streamed_and_whole,
)

COUNT = f"{MESSAGES}/count_tokens"
_TOOLS = [
    {"name": "weather", "description": "The weather of a city.", "input_schema": CITY},
    {"name": "time", "input_schema": {"type": "object", "properties": {}}},
]
_USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Ulm"}}
_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
_CALLED = [*HELLO, {"role": "assistant", "content": [_USE]}, {"role": "user", "content": [_RESULT]}]
_FORMAT = {"format": {"type": "json_schema", "schema": CITY}}
_BILLED = [{"type": "text", "text": "x-anthropic-billing-header: a=b"}, {"type": "text", "text": "Be brief."}]
_ANTHROPIC = {"anthropic-version": "2023-06-01"}
_BLOCKS = [
    {"type": "text", "text": "Hel", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "lo"},
]

TABLE = table(
    "messages",
    {
        **streamed_and_whole(
            MESSAGES,
            {
                "plain": message(),
                "a system text": message(system="Be brief."),
                "system blocks": message(system=_BILLED),
                "a conversation": message(messages=[*HELLO, {"role": "assistant", "content": "Hi"}, *HELLO]),
                "blocks": message(messages=[{"role": "user", "content": _BLOCKS}]),
                "a stop sequence": message(stop_sequences=[" brown"], max_tokens=20),
                "sampling": message(temperature=0.5, top_p=0.9, top_k=4, seed=3),
                "a prefill": message(messages=[*HELLO, {"role": "assistant", "content": "The quick"}]),
                "a schema": message(output_config=_FORMAT, max_tokens=40),
                "an older schema": message(output_format=_FORMAT["format"], max_tokens=40),
                "tools, auto": message(tools=_TOOLS),
                "tools, any": message(
                    tools=_TOOLS,
                    tool_choice={"type": "any", "disable_parallel_tool_use": True},
                    max_tokens=80,
                ),
                "a named tool": message(
                    tools=_TOOLS, tool_choice={"type": "tool", "name": "weather"}, max_tokens=80
                ),
                "tools, none": message(tools=_TOOLS, tool_choice={"type": "none"}),
                "tools that are left out": message(
                    tools=[*_TOOLS, {"type": "bash_20250124", "name": "bash"}]
                ),
                "a result": message(messages=_CALLED, tools=_TOOLS),
                "calls": message(model="calls", tools=_TOOLS),
                "thoughts": message(
                    model="thinks",
                    thinking={"type": "enabled", "budget_tokens": 1024},
                    max_tokens=2048,
                    temperature=1,
                ),
                "thoughts and calls": message(model="thinks-and-calls", tools=_TOOLS),
                "a length": message(model="cut"),
                "fields that change nothing": message(metadata={"user_id": "ada"}, service_tier="auto"),
                "fields that are left out": message(mcp_servers=[{"url": "x"}], container="c", speed="fast"),
                "an unknown field": message(frobnicate=1),
                "another name of the model": message(model="gpt-5"),
                "a priority": message(priority=2),
                "a group that breaks": message(model="breaks"),
            },
        ),
        **posts(
            MESSAGES,
            {
                "a late refusal": message(model="refuses-late"),
                "a late refusal, streamed": message(model="refuses-late", stream=True),
                "a full group": message(model="full"),
                "an unknown model": message(model="nobody"),
                "no limit": {"model": "demo", "messages": HELLO},
                "a wrong type": message(max_tokens="five"),
                "a temperature above one": message(temperature=1.5),
                "an image": message(
                    messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]
                ),
                "a last message with a call": message(messages=_CALLED[:2], tools=_TOOLS),
                "a result without a call": message(messages=[*HELLO, _CALLED[2]]),
                "a choice of an unknown tool": message(
                    tools=_TOOLS, tool_choice={"type": "tool", "name": "none"}
                ),
                "a small budget of thoughts": message(thinking={"type": "enabled", "budget_tokens": 3}),
                "a misspelt field": message(stop_sequence=["x"]),
                "broken JSON": b'{"model": "demo"',
                "no messages": message(messages=[]),
            },
            headers=_ANTHROPIC,
        ),
        "the key of Anthropic's clients": Http(
            MESSAGES, message(), key="", headers={"x-api-key": "key-of-messages"}
        ),
        "no key": Http(MESSAGES, message(), key=""),
        "a wrong key": Http(MESSAGES, message(), key="", headers={"x-api-key": "key-of-nobody"}),
        "a session": [
            Http(MESSAGES, message(), headers={"X-Session-Id": "letters"}),
            Http(MESSAGES, message(stream=True), headers={"X-Session-Id": "letters"}),
        ],
        **posts(
            COUNT,
            {
                "a count": {"model": "demo", "messages": HELLO},
                "a count with tools": {
                    "model": "demo",
                    "messages": HELLO,
                    "tools": _TOOLS,
                    "system": "Be brief.",
                },
                "a count of a prefill": {
                    "model": "demo",
                    "messages": [*HELLO, {"role": "assistant", "content": "The"}],
                },
                "a count with an unknown field": {"model": "demo", "messages": HELLO, "frobnicate": 1},
                "a count of no messages": {"model": "demo"},
                "a count by an unknown model": {"model": "nobody", "messages": HELLO},
            },
        ),
    },
)
