"""Tools, their calls in the history, and forms of the answer: from a body to the wire, or a named refusal."""

import json
from typing import Any

import pytest

from services.gateway.formats.chat.translation import chat_request
from services.gateway.formats.fields.sampling import field_names_of
from services.gateway.formats.text.call import completion_requests
from shared.errors import InvalidRequest
from shared.messages import (
    ChatMessage,
    SessionRef,
    StructuredOutput,
    TemplateOptions,
    ToolCall,
    ToolDefinition,
    ToolUse,
)
from tests.kits.gateway.completion_bodies import chat, completion, origin, refused

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TEXT_OF_SCHEMA = json.dumps(SCHEMA, separators=(",", ":"))
BY_SCHEMA = StructuredOutput(kind="json_schema", definition=TEXT_OF_SCHEMA)
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "time", "strict": True}}
DEFINED = [
    ToolDefinition(name="weather", description="Tells it.", parameters=TEXT_OF_SCHEMA),
    ToolDefinition(name="time", strict=True),
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, ToolUse(tools=DEFINED)),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, ToolUse(tools=DEFINED)),
        ({"tool_choice": "none"}, ToolUse(tools=DEFINED, choice="none")),
        ({"tool_choice": "required", "parallel_tool_calls": False},
         ToolUse(tools=DEFINED, choice="required", parallel=False)),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}},
         ToolUse(tools=DEFINED, choice="named", name="time")),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}]}}},
         ToolUse(tools=DEFINED[1:], choice="required")),
    ],
)  # fmt: skip
def test_tools_reach_the_wire(fields: dict[str, Any], use: ToolUse) -> None:
    assert chat_request(chat(tools=[TOOL, STRICT], **fields), origin()).tools == use


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tool_choice": "auto"}, {"tool_choice": "none", "tools": None}]
)
def test_without_tools_there_is_nothing_to_choose(fields: dict[str, Any]) -> None:
    assert chat_request(chat(**fields), origin()).tools is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]},
         "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "time"}}},
         "tool_choice.function.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}},
         "tool_choice.allowed_tools.tools"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request(chat(**fields), origin())
    assert caught.value.data["param"] == param


def test_calls_and_their_results_are_messages() -> None:
    body = chat(
        messages=[
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Oslo."},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Rain"}]},
            {"role": "assistant", "content": None, "refusal": "No."},
        ]
    )
    assert chat_request(body, origin()).messages == [
        ChatMessage(role="user", content="Weather?"),
        ChatMessage(
            role="assistant",
            content="",
            tool_calls=[ToolCall(call_id="c1", name="weather", arguments='{"city":"Oslo"}')],
            reasoning="Oslo.",
        ),
        ChatMessage(role="tool", content="Rain", tool_call_id="c1"),
        ChatMessage(role="assistant", content="No."),
    ]


def test_a_result_needs_its_call_unless_the_session_has_it() -> None:
    body = chat(messages=[{"role": "tool", "tool_call_id": "c1", "content": "Rain"}])
    with pytest.raises(InvalidRequest) as caught:
        chat_request(body, origin())
    assert caught.value.data["param"] == "messages[0].tool_call_id"
    assert chat_request(body, origin(SessionRef(session_id="s"))).messages


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "c1"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
    ],
)  # fmt: skip
def test_wrong_messages_are_refused_by_name(message: dict[str, Any], param: str) -> None:
    assert refused(chat, messages=[message]).data["param"] == param


def test_an_image_is_refused_as_what_it_is() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert (
        "the model takes no images" in refused(chat, messages=[{"role": "user", "content": [part]}]).message
    )


@pytest.mark.parametrize(
    ("fields", "form", "name"),
    [
        ({"response_format": {"type": "json_object"}},
         StructuredOutput(kind="json_object"), "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
         BY_SCHEMA, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutput(kind="regex", definition="a+"),
         "structured_outputs.regex"),
        ({"structured_outputs": {"json": TEXT_OF_SCHEMA, "disable_fallback": True}},
         BY_SCHEMA, "structured_outputs.json"),
        ({"guided_choice": ["a", "b"]},
         StructuredOutput(kind="choice", choices=["a", "b"]), "guided_choice"),
        ({"guided_json": SCHEMA}, BY_SCHEMA, "guided_json"),
        ({"json_schema": SCHEMA}, BY_SCHEMA, "json_schema"),
        ({"grammar": "root ::= x"}, StructuredOutput(kind="grammar", definition="root ::= x"), "grammar"),
    ],
)  # fmt: skip
def test_forms_of_the_answer_reach_the_wire(
    fields: dict[str, Any], form: StructuredOutput, name: str
) -> None:
    assert chat_request(chat(**fields), origin()).structured == form
    assert completion_requests(completion(**fields), origin(), ["r"])[0].structured == form
    assert field_names_of(chat(**fields))["structured"] == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": 3}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json"),
    ],
)  # fmt: skip
def test_wrong_forms_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request(chat(**fields), origin())
    assert caught.value.data["param"] == param


def test_template_variables_and_token_limits_reach_the_wire() -> None:
    body = chat(
        reasoning_effort="low", chat_template_kwargs={"enable_thinking": False},
        stop_token_ids=[2, 7], min_tokens=3, truncate_prompt_tokens=9,
        metadata={"a": "b"}, store=False, service_tier="auto", top_logprobs=0, logprobs=False,
    )  # fmt: skip
    request = chat_request(body, origin())
    assert request.template == TemplateOptions(reasoning_effort="low", variables='{"enable_thinking":false}')
    assert (request.sampling.stop_token_ids, request.sampling.min_tokens) == ([2, 7], 3)
    assert (request.truncate_prompt_tokens, request.sampling.logprobs) == (9, -1)
    assert chat_request(chat(), origin()).template is None
