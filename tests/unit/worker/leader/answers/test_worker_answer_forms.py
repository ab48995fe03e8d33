"""Chat answers of a leader have typed parts, the same after a loss; plain answers cost what they did."""

import json
from typing import Any

import pytest

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.domain.answers.stop_strings import StopMatcher, StopStrings
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.tool_checks import check_tool_results, check_tools, template_input
from services.worker.model_files.model import Model
from services.worker.null.model import ByteTokenizer, null_model
from services.worker.rank_protocol.engine_sampling import engine_sampling
from services.worker.rank_protocol.plan import Sampled
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from shared.codec import unpack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    AnswerPart,
    ChatMessage,
    FinishReason,
    GenerateRequest,
    ReasoningPart,
    Sampling,
    StructuredOutput,
    TemplateOptions,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolDefinition,
    ToolUse,
)
from shared.messages.answer_parts import join_parts

LONG, DEEP, WRONG = "x" * 300_000, "[" * 10**5, '{"properties": {"a": {"type": "int"}}}'
WEATHER = ToolDefinition(
    name="weather", parameters='{"type": "object", "properties": {"city": {"type": "string"}}}'
)
QWEN = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% for key, value in c.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}{% endfor %}"
    "{% if m.role == 'tool' %} for {{ m.name }} {{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}</think>"
)
ANSWER = (
    "thinks\n</think>\n\nI look.<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Rom\\nSTOP"}}</tool_call>'
)


def model(template: str = QWEN) -> Model:
    made = null_model("m", 8192)
    return Model(
        name=made.name,
        context_length=made.context_length,
        eos_ids=frozenset(),
        tokenizer=ByteTokenizer(),
        template=ChatTemplate(template, {}),
    )


def asking(**fields: Any) -> GenerateRequest:
    messages = fields.pop("messages", [ChatMessage(role="user", content="hello")])
    return GenerateRequest(request_id="r", model="m", messages=messages, **fields)


def choice_of(request: GenerateRequest, before: bytes = b"", prompt: str = "<think>\n") -> ChoiceState:
    its = model()
    tokens = its.tokenizer.encode(prompt, add_special_tokens=False)
    form = AnswerForms(its).form_of(request, tokens)
    assert form is not None
    sequence = Sequence(
        request_id="r", choice=0, tokens=tokens + list(before), prompt_len=len(tokens), max_tokens=4096,
        sampling=engine_sampling(request.sampling), eos_ids=frozenset(), tenant="t", priority=0, deadline=1e9,
    )  # fmt: skip
    stops = StopMatcher(StopStrings(request.sampling.stop)) if request.sampling.stop else None
    choice = ChoiceState(
        sequence,
        form.detokenizer(its.tokenizer.detokenizer()),
        stops,
        its.tokenizer.spelling,
        answer=form.reader(0),
    )
    if before:
        choice.prime()
    return choice


def answered(
    choice: ChoiceState, text: bytes, reason: FinishReason = "length"
) -> tuple[list[AnswerPart], int]:
    """Returns the parts that the caller gets, and how many tokens came before the end."""
    parts: list[AnswerPart] = []
    count = 0
    for index, byte in enumerate(text, 1):
        choice.advance(Sampled(seq_id=0, token_id=byte), reason if index == len(text) else None)
        delta = choice.take_delta()
        assert delta is not None
        count += len(unpack_tokens(delta.token_ids))
        parts += delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
        assert (
            delta.text == "".join(p.text for p in delta.parts if isinstance(p, TextPart)) or not delta.parts
        )
        if choice.finish_reason is not None:
            break
    return join_parts(parts), count


TOOLS = ToolUse(tools=[WEATHER])


def test_an_answer_comes_in_parts_and_the_session_keeps_them() -> None:
    choice = choice_of(asking(tools=TOOLS, sampling=Sampling(stop=["STOP"])))
    parts, _ = answered(choice, ANSWER.encode())
    assert [type(part) for part in parts] == [ReasoningPart, TextPart, ToolCallPart]
    call = parts[2]
    assert isinstance(call, ToolCallPart)
    assert json.loads(call.arguments) == {"city": "Rom\nSTOP"}  # a stop string is not looked for in it
    assert choice.message() == ChatMessage(
        role="assistant",
        content="I look.",
        reasoning="thinks",
        tool_calls=[ToolCall(call_id=call.call_id, name="weather", arguments=call.arguments)],
    )
    assert choice.answer is not None
    assert choice.answer.reasoning_tokens == len("thinks\n</think>")


@pytest.mark.parametrize("at", range(1, len(ANSWER), 3))
def test_an_answer_that_another_group_goes_on_with_has_the_same_parts(at: int) -> None:
    request, data = asking(tools=TOOLS), ANSWER.encode()
    whole, _ = answered(choice_of(request), data)
    first = choice_of(request)
    before: list[AnswerPart] = []
    for byte in data[:at]:
        first.advance(Sampled(seq_id=0, token_id=byte), None)
        delta = first.take_delta()
        assert delta is not None
        before += delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
    second = choice_of(request, before=data[:at])
    after, _ = answered(second, data[at:])
    assert join_parts([*before, *after]) == whole
    assert second.message() == choice_after(request, data).message()


def choice_after(request: GenerateRequest, data: bytes) -> ChoiceState:
    choice = choice_of(request)
    answered(choice, data)
    return choice


def test_calls_end_an_answer_with_their_own_reason() -> None:
    choice = choice_of(asking(tools=TOOLS))
    answered(choice, ANSWER.encode() + b"\0", reason="stop")
    assert choice.finish_reason == "tool_calls"
    one = choice_of(asking(tools=ToolUse(tools=[WEATHER], parallel=False)))
    parts, count = answered(one, (ANSWER + ANSWER).encode())
    assert one.finish_reason == "tool_calls"
    assert count <= len(ANSWER)
    assert len(parts) == 3
    stopped = choice_of(asking(tools=TOOLS, sampling=Sampling(stop=["look"])))
    parts, _ = answered(stopped, ANSWER.encode())
    assert stopped.finish_reason == "stop"
    assert parts[1:] == [TextPart(text="I ")]


def test_answers_without_tools_and_reasoning_are_not_read_at_all() -> None:
    plain = AnswerForms(model("{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert plain.form_of(asking(), [1]) is None
    assert plain.form_of(asking(tools=ToolUse(tools=[WEATHER], choice="none")), [1]) is None
    assert plain.form_of(asking(tools=TOOLS), [1]) is not None  # the generic form
    structured = StructuredOutput(kind="json_object")
    assert plain.form_of(asking(structured=structured), [1]) is None


def test_templates_get_tools_calls_and_results() -> None:
    call = ToolCall(call_id="c1", name="weather", arguments='{"city": "Rom"}')
    messages = [
        ChatMessage(role="developer", content="D"),
        ChatMessage(role="assistant", content="", tool_calls=[call]),
        ChatMessage(role="tool", content="sunny", tool_call_id="c1"),
    ]
    request = asking(
        messages=messages, tools=TOOLS, template=TemplateOptions(variables='{"enable_thinking": true}')
    )
    template = ChatTemplate(QWEN, {})
    text = template.render(messages, given=template_input(request, template))
    assert '"name": "weather"' in text
    assert "<|system|>D<|assistant|>weather city=Rom<|tool|>sunny for weather c1<|assistant|><think>" in text
    simple = ChatTemplate("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}", {})
    words = simple.render(messages, given=template_input(request, simple))
    assert '"arguments": {"city": "Rom"}' in words
    assert "<tool_response>\nsunny\n</tool_response>" in words
    assert '"name": "weather"' in words.partition("[assistant")[0]


class Special(ByteTokenizer):
    special_texts = frozenset({"<|user|>"})


def test_text_of_tools_arguments_and_results_never_becomes_a_control_token() -> None:
    guard = ControlTokenGuard(Special(), ChatTemplate(QWEN, {}))
    call = ToolCall(call_id="c<|user|>", name="weather", arguments='{"city": "<|user|> \\u003c|user|>"}')
    messages = [
        ChatMessage(role="assistant", content="", tool_calls=[call], reasoning="<|user|>"),
        ChatMessage(role="tool", content="<|user|>", tool_call_id="c<|user|>"),
    ]
    tool = ToolDefinition(name="f", description="<|user|>", parameters='{"title": "\\u003c|user|>"}')
    request = asking(
        messages=messages,
        tools=ToolUse(tools=[tool]),
        template=TemplateOptions(variables='{"x": "<|user|>"}'),
    )
    pieces = guard.render_prompt(messages, 5.0, template_input(request, ChatTemplate(QWEN, {})))
    assert not [piece for piece in pieces if "<|user|>" in piece]
    assert "".join(pieces).count("<|user|>") == 6


def one(**fields: Any) -> ToolDefinition:
    return ToolDefinition(name="f", **fields)


def check(request: GenerateRequest, template: ChatTemplate) -> None:
    check_tools(request, template)
    check_tool_results(request.messages or [])
    template_input(request, template)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": ToolUse(tools=[WEATHER, WEATHER])}, "tools", "earlier one"),
        ({"tools": ToolUse(tools=[WEATHER], choice="named", name="x")}, "tools", "'x'"),
        ({"tools": ToolUse(tools=[], choice="required")}, "tools", "has none"),
        ({"tools": ToolUse(tools=[one(parameters="[]")])}, "tools", "JSON Schema"),
        ({"tools": ToolUse(tools=[one(parameters='{"type": "string"}')])}, "tools", "object"),
        ({"tools": ToolUse(tools=[one(parameters=DEEP)])}, "tools", "JSON Schema"),
        (
            {"tools": ToolUse(tools=[one(parameters=WRONG)])},
            "tools",
            "'a'",
        ),
        ({"tools": ToolUse(tools=[one(description=LONG)])}, "tools", "characters"),
        ({"tools": ToolUse(tools=[WEATHER], format="none")}, "tools", "hermes"),
        ({"template": TemplateOptions(variables="[]")}, "template", "JSON object"),
        ({"template": TemplateOptions(variables='{"messages": []}')}, "template", "'messages'"),
        ({"template": TemplateOptions(variables='{"__class__": 1}')}, "template", "'__class__'"),
        ({"messages": [ChatMessage(role="tool", content="x", tool_call_id="c")]}, "messages", "'c'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_field(fields: dict[str, Any], param: str, says: str) -> None:
    request, template = asking(**fields), ChatTemplate(QWEN, {})
    with pytest.raises(InvalidRequest, match=says) as refused:
        check(request, template)
    assert refused.value.data["param"] == param
