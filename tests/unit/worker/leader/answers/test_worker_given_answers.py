"""An answer that goes on from any of its characters is, with what was given, the answer that was not cut."""

from collections.abc import Iterator

import pytest

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.continued_prompts import ContinuedPrompt, ContinuedPrompts
from services.worker.model_files.model import Model
from services.worker.null.model import ByteTokenizer, null_model
from services.worker.rank_protocol.engine_sampling import engine_sampling
from services.worker.rank_protocol.plan import Sampled
from services.worker.text.answers.continued_text import continued_detokenizer
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from shared.errors import InvalidRequest
from shared.messages import (
    AnswerPart,
    ChatMessage,
    GenerateRequest,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolDefinition,
    ToolUse,
)

QWEN = (
    "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think></think>"
)
REASONING, CONTENT = "It may  rain.\n\nOr < not >", "I look <to see> it, \n tool_call: "
ARGUMENTS = '{"city": "Rom\\n ☕", "days": [1, 2]}'
ANSWER = (
    f"{REASONING}\n</think>\n\n{CONTENT.rstrip()}\n<tool_call>\n"
    f'{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
)
WEATHER = ToolDefinition(name="weather", parameters='{"type": "object"}')
USER = ChatMessage(role="user", content="hello")


def its_model() -> Model:
    made = null_model("m", 8192)
    return Model(
        name="m",
        context_length=8192,
        eos_ids=frozenset(),
        tokenizer=ByteTokenizer(),
        template=ChatTemplate(QWEN, {}),
        tool_format=made.tool_format,
    )


def asking(*, tools: bool = True) -> GenerateRequest:
    use = ToolUse(tools=[WEATHER], parallel=False) if tools else None
    return GenerateRequest(
        request_id="r", model="m", messages=[USER], sampling=Sampling(), tools=use, continues=True
    )


def begun(message: ChatMessage, prompt: str, *, tools: bool = True) -> tuple[ContinuedPrompt, ChoiceState]:
    """The prompt that goes on from a message, and the choice that reads its answer."""
    model, request = its_model(), asking(tools=tools)
    assert model.template is not None
    guard = ControlTokenGuard(model.tokenizer, model.template)
    before = model.tokenizer.encode(prompt, add_special_tokens=False)
    made = ContinuedPrompts(model, guard, lambda: 0).continued(request, before, message)
    form = AnswerForms(model).form_of(request, before)
    assert form is not None
    sequence = Sequence(
        request_id="r", choice=0, tokens=made.tokens, prompt_len=len(made.tokens), max_tokens=4096,
        sampling=engine_sampling(request.sampling), tenant="t",
    )  # fmt: skip
    inner = continued_detokenizer(
        lambda: form.detokenizer(model.tokenizer.detokenizer()), made.given.kept, made.given.dropped
    )
    choice = ChoiceState(sequence, inner, None, model.tokenizer.spelling, answer=form.reader(0, made.given))
    choice.text.append(message.content)
    return made, choice


def parts_of(choice: ChoiceState, text: str) -> list[AnswerPart]:
    parts: list[AnswerPart] = []
    data = text.encode()
    for index, byte in enumerate(data, 1):
        choice.advance(Sampled(seq_id=0, token_id=byte), "length" if index == len(data) else None)
        delta = choice.take_delta()
        assert delta is not None
        parts += delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
        if choice.finish_reason is not None:
            break
    return parts


def cuts() -> Iterator[tuple[ChatMessage, str]]:
    """Messages that hold the beginning of the answer, each with the rest as the model writes it."""
    for cut in range(len(REASONING) + 1):
        rest = ANSWER[ANSWER.index(REASONING) + cut :]
        yield ChatMessage(role="assistant", content="", reasoning=REASONING[:cut]), rest
    for cut in range(1, len(CONTENT.rstrip()) + 1):
        rest = ANSWER[ANSWER.index(CONTENT.rstrip()) + cut :]
        yield ChatMessage(role="assistant", content=CONTENT[:cut], reasoning=REASONING), rest
    for cut in range(len(ARGUMENTS) + 1):
        rest = ANSWER[ANSWER.index(ARGUMENTS) + cut :]
        call = ToolCall(call_id="mine", name="weather", arguments=ARGUMENTS[:cut])
        yield (
            ChatMessage(role="assistant", content=CONTENT.rstrip(), reasoning=REASONING, tool_calls=[call]),
            rest,
        )


@pytest.mark.parametrize("prompt", ["<|assistant|><think>\n", "<|assistant|>"])
def test_both_parts_are_the_whole_answer(prompt: str) -> None:
    for message, rest in cuts():
        if not message.reasoning and not prompt.endswith("\n"):
            continue  # that answer would begin with the mark of its reasoning
        made, choice = begun(message, prompt)
        assert bytes(made.tokens[len(prompt) :]).decode() == made.given.text
        parts = parts_of(choice, rest)
        whole = choice.message()
        where = f"{message!r} + {rest!r}"
        assert (whole.reasoning, whole.content) == (REASONING, CONTENT.rstrip()), where
        (call,) = whole.tool_calls
        assert (call.name, call.arguments) == ("weather", ARGUMENTS), where
        assert choice.finish_reason == "tool_calls"
        texts: dict[type[AnswerPart], str] = {ReasoningPart: "", TextPart: "", ToolCallPart: ""}
        for part in parts:
            texts[type(part)] += part.arguments if isinstance(part, ToolCallPart) else part.text
        assert message.reasoning + texts[ReasoningPart] == REASONING, where
        assert message.content + texts[TextPart] == CONTENT.rstrip(), where
        given = "".join(one.arguments for one in message.tool_calls)
        assert given + texts[ToolCallPart] == ARGUMENTS, where
        names = [one for one in parts if isinstance(one, ToolCallPart) and one.name]
        assert [(one.index, one.name) for one in names] == [(0, "weather")], where
        assert names[0].call_id == (message.tool_calls[0].call_id if message.tool_calls else call.call_id)


def test_white_space_at_the_seam_comes_once() -> None:
    for content in ("Hello ", "Hello\n\n", "a <tool", "a <tool_call", "  x \n"):
        _, choice = begun(ChatMessage(role="assistant", content=content), "<|assistant|>", tools=False)
        parts = parts_of(choice, "there, you.")
        assert "".join(part.text for part in parts if isinstance(part, TextPart)) == "there, you."
        assert choice.message().content == f"{content}there, you."


def test_text_of_a_message_is_never_read_as_a_call() -> None:
    quoted = 'Write <tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call> so'
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        begun(ChatMessage(role="assistant", content=quoted), "<|assistant|>")
    call = ToolCall(call_id="c", name="<|im_end|>", arguments="{")
    with pytest.raises(InvalidRequest, match="none of the request's tools"):
        begun(ChatMessage(role="assistant", content="", tool_calls=[call]), "<|assistant|>")
