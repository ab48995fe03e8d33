"""Unknown fields inside messages, content parts and tools are found at any place, and no known one is."""

import json
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from services.gateway.answering.left_out import IgnoredFields, LeftOut
from services.gateway.formats.anthropic.schema import MessagesRequest
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import parse_body
from services.gateway.formats.fields.body_types import RequestBody
from services.gateway.formats.fields.inner_fields import MAX_UNKNOWN
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.tokens.schema import TokenizeRequest
from services.gateway.metrics import GatewayMetrics
from shared.errors import InvalidRequest

USER: Any = {"role": "user", "content": "hi"}
CALL: Any = {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARAMETERS = {"type": "object", "properties": {"any": {"anything": 1}}}
FUNCTION: Any = {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}
TOOL: Any = {"type": "function", "function": FUNCTION}
# as an SDK sends an answer back
ANSWER: Any = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "reasoning": "r",
    "tool_calls": [CALL | {"index": 0}],
}


def chat(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER, *messages], **more}).encode()


def claude(content: Any, **more: Any) -> bytes:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}], **more}
    return json.dumps(body).encode()


def response(*items: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": list(items), **more}).encode()


@pytest.mark.parametrize(
    ("kind", "raw", "names"),
    [
        (ChatCompletionRequest, chat(USER | {"foo": 1}), ["messages[1].foo"]),
        (
            ChatCompletionRequest,
            chat(USER | {"content": [{"type": "text", "text": "a", "colour": "red"}]}),
            ["messages[1].content[0].colour"],
        ),
        (
            ChatCompletionRequest,
            chat(ANSWER | {"tool_calls": [CALL | {"function": CALL["function"] | {"x": 1}, "y": 1}]}),
            ["messages[1].tool_calls[0].y", "messages[1].tool_calls[0].function.x"],
        ),
        (
            ChatCompletionRequest,
            chat(tools=[TOOL | {"function": FUNCTION | {"a": 1}}]),
            ["tools[0].function.a"],
        ),
        (ChatCompletionRequest, chat(stream=True, stream_options={"every": 1}), ["stream_options.every"]),
        (TokenizeRequest, chat(USER | {"foo": 1}), ["messages[1].foo"]),
        (MessagesRequest, claude([{"type": "text", "text": "a", "b": 1}]), ["messages[0].content[0].b"]),
        (
            MessagesRequest,
            claude([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "u": 1}]}]),
            ["messages[0].content[0].content[0].u"],
        ),
        (MessagesRequest, claude("a", tools=[{"name": "f", "input_schema": {}, "z": 1}]), ["tools[0].z"]),
        (MessagesRequest, claude("a", system=[{"type": "text", "text": "s", "w": 1}]), ["system[0].w"]),
        (ResponseRequest, response(USER | {"foo": 1}), ["input[0].foo"]),
        (
            ResponseRequest,
            response(USER | {"content": [{"type": "input_text", "v": 1}]}),
            ["input[0].content[0].v"],
        ),
        (ResponseRequest, response(USER, reasoning={"depth": 3}), ["reasoning.depth"]),
        # what is known
        (ChatCompletionRequest, chat(ANSWER, tools=[TOOL], metadata={"any": "thing"}), []),
        (ChatCompletionRequest, chat(response_format={"type": "json_object", "free": 1}), []),
        (
            MessagesRequest,
            claude(
                [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
                tools=[{"name": "f", "input_schema": PARAMETERS, "cache_control": {"type": "ephemeral"}}],
            ),
            [],
        ),
        (
            ResponseRequest,
            response(
                {"type": "reasoning", "id": "r", "summary": [], "status": "completed"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "i"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ),
            [],
        ),
    ],
)
def test_unknown_fields_inside_are_named_with_their_position(
    kind: type[RequestBody], raw: bytes, names: list[str]
) -> None:
    assert list(parse_body(raw, kind).unknown_inside) == names


def test_only_so_many_are_named() -> None:
    message = USER | {f"x{number}" * 40: 1 for number in range(30)}
    found = parse_body(chat(*[message] * 50), ChatCompletionRequest).unknown_inside
    assert len(found) == MAX_UNKNOWN
    assert max(map(len, found)) < 100


def test_a_name_is_logged_once_whatever_message_it_is_in() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    unknown = IgnoredFields("/v1/x", metrics, strict=False)
    with structlog.testing.capture_logs() as logs:
        for index in range(3):
            unknown.tell([f"messages[{index}].foo"], [], "r-1")
        reported = unknown.tell(["messages[0].bar"], [LeftOut("tools[1]", "tool", "bash, x")], "r-2")
        assert unknown.tell([], [], "r-3") == []
    assert reported == [(b"x-ryz-ignored", b"tools[1] (bash_ x), messages[0].bar")]
    assert [line["fields"] for line in logs] == [
        ["messages[0].foo"],
        ["messages[0].bar", "tools[1] (bash_ x)"],
    ]
    assert registry.get_sample_value("ryz_gateway_unknown_fields_total") == 4
    assert registry.get_sample_value("ryz_gateway_left_out_total", {"kind": "tool"}) == 1
    with pytest.raises(InvalidRequest, match=r"unknown field `messages\[7\]\.foo`") as caught:
        IgnoredFields("/v1/x", metrics, strict=True).tell(["messages[7].foo"], [], "r-4")
    assert caught.value.data["param"] == "messages[7].foo"
