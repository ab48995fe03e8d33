"""Chat completions: sampling, forms, tools, reasoning, continued answers, prompts of ids."""

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import (
    CHAT,
    CITY,
    HELLO,
    IDS,
    JSON,
    PATCH_TOOL,
    TOOLS,
    USAGE,
    VARIANTS,
    chat,
    posts,
    streamed_and_whole,
)

_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
_ONE: JSON = {"type": "function", "function": {"name": "weather"}}
_CALLED: list[JSON] = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]
_BEGUN = [*HELLO, {"role": "assistant", "content": "The quick"}]
_PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]

PLAIN = table(
    "chat",
    {
        **streamed_and_whole(CHAT, {name: chat(**fields) for name, fields in VARIANTS.items()}),
        **posts(
            CHAT,
            {
                "usage in the stream": chat(**USAGE),
                "usage and two choices in the stream": chat(**USAGE, n=2),
                "event ids": chat(**IDS),
                "event ids and usage": chat(
                    stream=True, stream_options={"include_event_ids": True, "include_usage": True}
                ),
                "log probabilities": chat(logprobs=True, top_logprobs=2),
                "log probabilities, streamed": chat(logprobs=True, top_logprobs=1, stream=True),
                "log probabilities of two choices, streamed": chat(logprobs=True, n=2, stream=True),
                "log probabilities of the prompt": chat(prompt_logprobs=1),
                "token ids and usage, streamed": chat(return_token_ids=True, **USAGE),
                "the newer name of the limit": chat(max_completion_tokens=2),
                "no limit but a stop string": {"model": "demo", "messages": HELLO, "stop": "lazy"},
                "a system message": chat(messages=[{"role": "system", "content": "Be brief."}, *HELLO]),
                "a developer's message": chat(
                    messages=[{"role": "developer", "content": "Be brief."}, *HELLO]
                ),
                "text parts": chat(messages=_PARTS),
                "a whole conversation": chat(
                    messages=[*HELLO, {"role": "assistant", "content": "Hi"}, *HELLO]
                ),
                "letters of many scripts": chat(
                    messages=[{"role": "user", "content": "Grüße, 日本 🌦\u2028"}]
                ),
                "no beginning of the answer": chat(add_generation_prompt=False),
                "variables of the template": chat(chat_template_kwargs={"enable_thinking": False}),
                "an effort": chat(reasoning_effort="none"),
                "another name of the model": chat(model="nickname"),
                "a pattern of names, streamed": chat(model="gpt-5", stream=True),
                "a prompt of ids": {"model": "demo", "prompt_token_ids": [0, 5, 6, 7], "max_tokens": 4},
                "a prompt of ids, streamed": {
                    "model": "demo",
                    "prompt_token_ids": [0, 5],
                    "max_tokens": 4,
                    "stream": True,
                },
                "null fields": chat(stop=None, n=None, tools=None, stream=None),
            },
        ),
    },
)

FORMS = table(
    "chat-forms",
    {
        **streamed_and_whole(
            CHAT,
            {
                "a schema": chat(response_format=_FORMAT, max_tokens=40),
                "plain text": chat(response_format={"type": "text"}),
                "llama.cpp's grammar": chat(grammar='root ::= "x"+ "y"', max_tokens=8),
                "llama.cpp's schema": chat(json_schema=CITY, max_tokens=40),
                "an older choice": chat(guided_choice=["left", "right"], max_tokens=10),
                "an older expression": chat(guided_regex="[a-c]{2}", max_tokens=10),
                "a schema that is cut": chat(response_format=_FORMAT, max_tokens=3),
                "a schema and two choices": chat(response_format=_FORMAT, max_tokens=40, n=2),
                "tools, required": chat(
                    tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=80
                ),
                "a named tool": chat(tools=TOOLS, tool_choice=_ONE, max_tokens=80),
                "a named tool that is cut": chat(tools=TOOLS, tool_choice=_ONE, max_tokens=24),
                "allowed tools": chat(
                    tools=TOOLS,
                    tool_choice={
                        "type": "allowed_tools",
                        "allowed_tools": {"mode": "required", "tools": [_ONE]},
                    },
                    parallel_tool_calls=False,
                    max_tokens=80,
                ),
                "tools, auto": chat(tools=TOOLS),
                "tools, none": chat(tools=TOOLS, tool_choice="none"),
                "tools that are left out": chat(tools=[*TOOLS, {"type": "web_search"}]),
                "a result of a tool": chat(messages=_CALLED, tools=TOOLS),
                "calls": chat(model="calls", tools=TOOLS),
                "calls with usage": chat(model="calls", tools=TOOLS, stream=False),
                "reasoning": chat(model="thinks"),
                "reasoning and calls": chat(model="thinks-and-calls", tools=TOOLS),
                "a custom tool": chat(model="patches", tools=[PATCH_TOOL]),
                "two choices of calls": chat(model="calls", tools=TOOLS, n=2),
                "a length": chat(model="cut"),
                "other words": chat(model="words"),
                "an answer that goes on": chat(messages=_BEGUN, continue_final_message=True),
                "a prefix that goes on": chat(
                    messages=[*HELLO, {"role": "assistant", "content": "The qu", "prefix": True}]
                ),
                "a schema that goes on": chat(
                    messages=[*HELLO, {"role": "assistant", "content": '{"city": "U'}],
                    continue_final_message=True,
                    response_format=_FORMAT,
                    max_tokens=40,
                ),
                "ids of an answer that goes on": chat(
                    messages=_BEGUN, continue_final_message=True, return_token_ids=True
                ),
            },
        ),
        "reasoning with usage, streamed": Http(CHAT, chat(model="thinks", **USAGE)),
        "calls with event ids": Http(CHAT, chat(model="calls", tools=TOOLS, **IDS)),
        "calls as events with usage": Http(CHAT, chat(model="calls", tools=TOOLS, **USAGE)),
    },
)
