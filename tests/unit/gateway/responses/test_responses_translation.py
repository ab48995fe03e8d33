"""From bodies and stored responses to requests, and what is refused by the name of its field."""

import json
from typing import Any

import pytest

from services.gateway.formats.fields.body_format import parse_body
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.responses.translation import (
    _REFUSED,
    ResponseCall,
    response_call,
    with_our_names,
)
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, ResponseRecord, StructuredOutput, ToolCall, ToolDefinition, ToolUse

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Ulm"}'}
USER = {"role": "user", "content": "hi"}


def call(*history: ResponseRecord, **body: Any) -> ResponseCall:
    raw = json.dumps({"model": "demo", "input": "hi"} | body).encode()
    return response_call(
        parse_body(raw, ResponseRequest),
        history,
        request_id="r1",
        tenant="t",
        seed=5,
        created_s=9,
        drops_blocks=True,
    )


def test_a_text_is_a_message_of_the_user() -> None:
    made = call(instructions="Be brief.", temperature=0.5, max_output_tokens=7, seed=-1)
    assert made.request.messages == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="hi"),
    ]
    sampling = made.request.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.5, 7, 2**63 - 1)
    assert made.request.session is None
    assert (made.response_id, made.stored, made.background) == ("resp_r1", True, False)


def test_items_become_messages_and_the_assistants_are_joined() -> None:
    made = call(
        input=[
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Wea"},
                                                            {"type": "input_text", "text": "ther?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [],
             "content": [{"type": "reasoning_text", "text": "Ask."}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            CALL,
            {"type": "function_call_output", "call_id": "c1",
             "output": [{"type": "input_text", "text": "sun"}]},
            {"role": "assistant", "content": "Sunny."},
            {"role": "assistant", "content": "Warm."},
        ]
    )  # fmt: skip
    tool_call = ToolCall(call_id="c1", name="weather", arguments='{"city":"Ulm"}')
    assert made.request.messages == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="Weather?"),
        ChatMessage(role="assistant", content="Looking.", reasoning="Ask.", tool_calls=[tool_call]),
        ChatMessage(role="tool", content="sun", tool_call_id="c1"),
        ChatMessage(role="assistant", content="Sunny."),
        ChatMessage(role="assistant", content="Warm."),
    ]


def stored(name: str, text: str, output: list[dict[str, Any]], status: str = "completed") -> ResponseRecord:
    items = json.dumps([{"type": "message", "role": "user", "content": text}])
    body = json.dumps({"id": name, "status": status, "output": output})
    ended = status not in {"queued", "in_progress"}
    return ResponseRecord(
        response_id=name, tenant="t", model="demo", input_items=items, body=body, ended=ended
    )


def test_a_conversation_goes_on_with_the_results_of_its_calls() -> None:
    cut = {**CALL, "call_id": "c2", "status": "incomplete", "arguments": '{"ci'}
    first = stored("resp_1", "Weather?", [{**CALL, "status": "completed"}, cut], "incomplete")
    result = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
    made = call(first, input=[result], previous_response_id="resp_1")
    assert made.request.messages is not None
    assert [message.role for message in made.request.messages] == ["user", "assistant", "tool"]
    assert [one.call_id for one in made.request.messages[1].tool_calls] == ["c1"]
    assert made.record({}, ended=True).parent == "resp_1"
    with pytest.raises(InvalidRequest, match="in_progress"):
        call(stored("resp_1", "hi", [], "in_progress"), previous_response_id="resp_1")


def test_tools_and_formats() -> None:
    weather = ToolDefinition(name="weather", parameters='{"type":"object"}', strict=True)
    choice: dict[str, Any] = {"type": "function", "name": "weather"}
    assert call(tools=[WEATHER]).request.tools == ToolUse(tools=[weather])
    named = call(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False).request.tools
    assert named == ToolUse(tools=[weather], choice="named", name="weather", parallel=False)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    other = {"type": "function", "name": "other"}
    made = call(tools=[WEATHER, other], tool_choice=allowed).request.tools
    assert made == ToolUse(tools=[weather], choice="required")
    schema = {"type": "json_schema", "name": "city", "schema": {"type": "object"}}
    structured = StructuredOutput(kind="json_schema", definition='{"type":"object"}')
    assert call(text={"format": schema}).request.structured == structured
    assert call(text={"format": {"type": "text"}}).request.structured is None
    assert call(tool_choice="auto").request.tools is None


def test_what_is_accepted_and_changes_nothing() -> None:
    made = call(
        n=1, user="u", safety_identifier="s", prompt_cache_key="k", service_tier="auto", metadata={"a": "b"},
        truncation="disabled", include=["reasoning.encrypted_content"], reasoning={"summary": "auto"},
        stream=True, stream_options={"include_obfuscation": False}, brand_new_field=1,
    )  # fmt: skip
    assert made.unknown_fields == ("brand_new_field",)
    assert made.fields["metadata"] == {"a": "b"}
    assert made.request.template is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "message", "role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [USER, {**USER, "content": [{"type": "input_image"}]}]}, "input[1].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "", "name": "f"}]}, "input[0].call_id"),
        ({"tools": [{"type": "functions"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "some"}, "truncation"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        call(**body)
    assert error.value.data["param"] == param
    assert param.rpartition(".")[2] in error.value.message


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_a_refused_field_keeps_its_name(name: str) -> None:
    """The names of a leader's fields are some of them: `prompt` of a leader is `input` here."""
    with pytest.raises(InvalidRequest) as error:
        call(**{name: 2})
    assert error.value.data["param"] == name
    assert error.value.message.startswith(f"`{name}` is not supported")
    assert with_our_names(InvalidRequest("`prompt` is empty", param="prompt")).data["param"] == "input"
