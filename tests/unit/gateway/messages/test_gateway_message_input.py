"""Bodies of Anthropic's Messages API become requests; errors name the field."""

from typing import Any

import msgspec
import pytest

from services.gateway.formats.anthropic.schema import MessagesRequest
from services.gateway.formats.anthropic.translation import count_query, message_call
from services.gateway.formats.fields.body_format import CallOrigin, parse_body
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, ToolCall

HELLO = {"role": "user", "content": "Hello"}
TOOL = {"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Rain"}]}


def request_of(headers: dict[bytes, bytes] | None = None, **fields: Any) -> GenerateRequest:
    raw = msgspec.json.encode({"model": "demo", "max_tokens": 9, "messages": [HELLO], **fields})
    call = message_call(parse_body(raw, MessagesRequest), CallOrigin("r", "acme", headers or {}))
    (request,) = call.requests
    return decode(encode(request), GenerateRequest)  # what the wire refuses must be refused before


def test_a_conversation_with_tools_and_thinking() -> None:
    request = request_of(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."}],
        messages=[
            HELLO,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Let me see."}, USE,
            ]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "And?"}]},
            {"role": "user", "content": "Well?"},
        ],
        tools=[TOOL], tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000, temperature=0.5, top_k=3,
        stop_sequences=["\n\n"], metadata={"user_id": "u"}, service_tier="auto",
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )  # fmt: skip
    assert request.messages == [
        ChatMessage(role="system", content="Be brief.\nBe kind."),
        ChatMessage(role="user", content="Hello"),
        ChatMessage(
            role="assistant",
            content="Let me see.",
            reasoning="hm",
            tool_calls=[ToolCall(call_id="t1", name="weather", arguments='{"city":"Oslo"}')],
        ),
        ChatMessage(role="tool", content="Rain", tool_call_id="t1"),
        ChatMessage(role="user", content="And?\nWell?"),
    ]
    assert request.tools is not None
    assert (request.tools.choice, request.tools.name, request.tools.parallel) == ("named", "weather", False)
    assert request.template is not None
    assert request.template.reasoning_effort == "low"
    assert request.template.variables == '{"enable_thinking":true,"thinking":true}'
    assert request.structured is not None
    assert request.structured.definition == '{"type":"object"}'
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (2000, 0.5, 3)
    assert (sampling.stop, request.tenant, request.delivery) == (["\n\n"], "acme", "whole")


@pytest.mark.parametrize(
    ("given", "taken"),
    [("auto", "auto"), ("any", "required"), ("none", "none")],
)
def test_choices_of_tools(given: str, taken: str) -> None:
    tools = request_of(tools=[TOOL], tool_choice={"type": given}).tools
    assert tools is not None
    assert (tools.choice, tools.parallel) == (taken, True)


def test_a_search_for_tools_names_what_it_found() -> None:
    reference = {"type": "tool_reference", "tool_name": "forecast"}
    found = {**RESULT, "content": [{"type": "text", "text": "One tool:"}, reference]}
    messages = [HELLO, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [found]}]
    request = request_of(messages=messages, tools=[TOOL, {**TOOL, "name": "forecast", "defer_loading": True}])
    assert request.messages is not None
    assert request.messages[-1].content == "One tool:\nThe tool forecast can be called now."
    assert request.tools is not None
    assert [tool.name for tool in request.tools.tools] == ["weather", "forecast"]


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ([{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference"}]}],
         "messages[2].content[0].content[0].tool_name"),
        ([RESULT, {"type": "tool_reference", "tool_name": "weather"}], "messages[2].content[1].type"),
    ],
)  # fmt: skip
def test_references_to_tools_are_of_results_and_have_a_name(content: Any, field: str) -> None:
    messages = [HELLO, {"role": "assistant", "content": [USE]}, {"role": "user", "content": content}]
    with pytest.raises(InvalidRequest) as caught:
        request_of(messages=messages, tools=[TOOL])
    assert caught.value.data["param"] == field


def test_a_request_without_a_session_begins_one() -> None:
    request = request_of()
    assert request.session is not None
    assert not request.session.given
    named = request_of({b"x-session-id": b"tea"})
    assert named.session is not None
    assert (named.session.session_id, named.session.given, named.confirms) == ("tea", True, True)


def test_a_result_may_be_of_a_call_in_the_session() -> None:
    asked = [{"role": "user", "content": [RESULT]}]
    assert request_of({b"x-session-id": b"tea"}, messages=asked).messages == [
        ChatMessage(role="tool", content="Rain", tool_call_id="t1")
    ]


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "whole number"),
    ({"max_tokens": -1}, "max_tokens", "at least 1"),
    ({"temperature": 1.5}, "temperature", "at most 1"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": [HELLO, {"role": "assistant", "content": [USE]}]}, "messages[1].content", "calls tools"),
    (said(IMAGE), "messages[0].content[0].type", "no input for images"),
    (said({"type": "document"}), "messages[0].content[0].type", "no input for documents"),
    (said({"type": "web_search_tool_result"}), "messages[0].content[0].type", "not served"),
    (said("x"), "messages[0].content[0]", "object"),
    (said(RESULT), "messages[0].content[0].tool_use_id", "no message before it has made"),
    (said({"type": "text"}), "messages[0].content[0].text", "must be a string"),
    ({"system": [IMAGE]}, "system[0].type", "no input for images"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name", "earlier tool"),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].type", "'custom'"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name", "letters"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema", "JSON Schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "needs `tools`"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "one of the tools"),
    ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, "thinking.budget_tokens", "less than"),
    ({"stop_sequences": [""]}, "stop_sequences[0]", "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), WRONG, ids=[param for _, param, _ in WRONG])
def test_errors_name_the_field(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        request_of(**fields)
    assert refused.value.data["param"] == param


def test_tokens_are_counted_of_the_same_conversation() -> None:
    fields: dict[str, Any] = {"system": "Be brief.", "tools": [TOOL], "thinking": {"type": "disabled"}}
    raw = msgspec.json.encode({"model": "demo", "max_tokens": 9, "messages": [HELLO], **fields})
    query, request = count_query(parse_body(raw, MessagesRequest), "acme"), request_of(**fields)
    assert (query.messages, query.tools, query.template) == (
        request.messages,
        request.tools,
        request.template,
    )
    assert (query.tenant, query.ids) == ("acme", False)
