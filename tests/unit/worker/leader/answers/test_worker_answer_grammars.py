"""Grammars of whole answers: reasoning that is free, then calls or a text that has a form."""

import json
from typing import Any

import pytest

from services.worker.domain.answers.parted_answer import PartedAnswer
from services.worker.domain.generation.token_constraint import TokenConstraint, TokenRefused
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.answer_grammars import AnswerGrammars
from services.worker.model_files.model import Model
from services.worker.null.model import END, ByteTokenizer, null_model
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.grammars.after_reasoning import ReasonedGrammar
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import (
    ChatMessage,
    GenerateRequest,
    ReasoningPart,
    StructuredOutput,
    TextPart,
    ToolCallPart,
    ToolDefinition,
    ToolUse,
)
from shared.messages.answer_parts import join_parts
from tests.kits.grammars.walks import allowed

PLAIN = "{{ tools }}<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}"
THINKING = PLAIN + "<think></think>"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRUCTURED = StructuredOutput(kind="json_schema", definition=json.dumps(SCHEMA))
TOOL = ToolDefinition(name="f", parameters=json.dumps(SCHEMA))
TEXT = '{"a": 5}'
CALL = f'<tool_call>\n{{"name": "f", "arguments": {TEXT}}}\n</tool_call>'
WORKED = f"<think>so <tool_call> it {{is}}\n</think>\n\n{TEXT}"


class Answering:
    """The grammar and the reader of the answers to a request."""

    def __init__(self, template: str = PLAIN, prompt: str = "", choice: str = "", **fields: Any) -> None:
        tokenizer = ByteTokenizer()
        made = null_model("m", 8192)
        its = Model("m", made.context_length, frozenset({END}), tokenizer, ChatTemplate(template, {}))
        name = "f" if choice == "named" else ""
        tools = ToolUse(tools=[TOOL], choice=choice, name=name) if choice else None  # type: ignore[arg-type]
        said = [ChatMessage(role="user", content="x")]
        request = GenerateRequest(request_id="r", model="m", messages=said, tools=tools, **fields)
        forms = AnswerForms(its)
        grammar = AnswerGrammars(its, forms).grammar_of(request)
        assert grammar is not None
        vocabulary = TokenVocabulary(tokenizer, {END}, tokenizer.vocab_size)
        self._factory = grammar.work(vocabulary, GrammarLimits())
        self._form = forms.form_of(request, list(prompt.encode()))

    def constraint(self) -> TokenConstraint:
        begun = self._form is not None and self._form.in_reasoning
        if begun:
            assert isinstance(self._factory, ReasonedGrammar)
            return self._factory.begun()
        return self._factory()

    def takes(self, text: str) -> bool:
        """Returns whether the answer may be this text, token by token under the masks, and end there."""
        running = self.constraint()
        for at, token in enumerate(text.encode()):
            if not self._allows(running, token):
                return False
            running.accept([token])
            again = self.constraint()
            again.accept(list(text.encode())[: at + 1])
            assert again.mask() == running.mask()
        return running.mask() is None or self._allows(running, END)

    def parts(self, text: str) -> list[Any]:
        assert self._form is not None
        reader: PartedAnswer = self._form.reader(0)
        reader.read(text, "stop", None)
        return join_parts(reader.unsent)

    @staticmethod
    def _allows(constraint: TokenConstraint, token: int) -> bool:
        mask, run = constraint.mask(), constraint.forced()
        assert not run or mask is None or run[0] in allowed(mask)
        return mask is None or token in allowed(mask)


def test_with_a_form_of_the_text_an_answer_is_a_call_or_such_a_text() -> None:
    either = Answering(choice="auto", structured=STRUCTURED)
    assert either.takes(TEXT)
    assert either.takes(CALL)
    assert [either.takes(text) for text in ("no", TEXT + CALL, '{"a": "x"}', CALL.replace("5", '"x"'))] == [
        False
    ] * 4
    assert either.parts(TEXT) == [TextPart(text=TEXT)]
    (call,) = either.parts(CALL)
    assert isinstance(call, ToolCallPart)
    assert (call.name, call.arguments) == ("f", TEXT)


@pytest.mark.parametrize("structured", [
    StructuredOutput(kind="regex", definition="[0-9]+"),
    StructuredOutput(kind="choice", choices=["7", "42"]),
    StructuredOutput(kind="grammar", definition='start: digit+\ndigit: "4" | "2"'),
    StructuredOutput(kind="grammar", definition='root ::= [0-9]+'),
])  # fmt: skip
def test_other_forms_of_the_text_stand_beside_calls_as_well(structured: StructuredOutput) -> None:
    either = Answering(choice="auto", structured=structured)
    assert either.takes("42")
    assert either.takes(CALL)
    assert not either.takes("x")


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_required_call_leaves_no_text_to_have_a_form(choice: str) -> None:
    answering = Answering(choice=choice, structured=STRUCTURED)
    assert answering.takes(CALL)
    assert not answering.takes(TEXT)


@pytest.mark.parametrize("choice", ["", "auto"])
def test_a_form_holds_behind_the_reasoning(choice: str) -> None:
    answering = Answering(THINKING, choice=choice, structured=STRUCTURED)
    assert answering.takes(TEXT)
    assert answering.takes(WORKED)
    assert not answering.takes("<think>so")  # an answer does not end in its reasoning
    assert not answering.takes(WORKED + "x")
    assert not answering.takes(WORKED.replace("5", '"x"'))
    assert not answering.takes("so " + TEXT)
    assert answering.parts(WORKED) == [
        ReasoningPart(text="so <tool_call> it {is}"),
        TextPart(text=TEXT),
    ]


def test_a_prompt_that_ends_in_reasoning_begins_with_it() -> None:
    answering = Answering(THINKING, prompt="<think>\n", structured=STRUCTURED)
    assert answering.takes(f"so it is</think>{TEXT}")
    assert answering.takes(f"</think>\n{TEXT}")
    assert not answering.takes(TEXT)
    assert answering.parts(f"so</think>\n\n{TEXT}") == [ReasoningPart(text="so"), TextPart(text=TEXT)]


def test_a_required_call_comes_behind_the_reasoning_and_none_is_begun_in_it() -> None:
    required = Answering(THINKING, choice="required")
    assert required.takes(f"<think>first <tool_call> then</think>\n\n{CALL}")
    assert required.takes(CALL)
    assert not required.takes("<think>first</think>no")
    free = Answering(THINKING, prompt="<think>", choice="auto")
    running = free.constraint()
    running.accept(list(b"first <tool_call> then"))
    assert running.mask() is None
    running.accept(list(b"</think> well <tool_call>"))
    assert running.mask() is not None
    with pytest.raises(TokenRefused):
        running.accept(list(b"x"))


HARMONY = "{{ tools }}<|channel|><|message|>functions.{% for m in messages %}{{ m.content }}{% endfor %}"
WORDS = "<|channel|>analysis<|message|>so it is<|end|><|start|>assistant"
CHANNEL_CALL = f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{TEXT}"
FINAL = f"<|channel|>final<|message|>{TEXT}"


def test_in_channels_calls_and_texts_stand_in_their_own() -> None:
    required = Answering(HARMONY, choice="required")
    assert required.takes(CHANNEL_CALL)
    assert required.takes(WORDS + CHANNEL_CALL)
    assert not required.takes(FINAL)
    assert not required.takes(CHANNEL_CALL.replace("5", '"x"'))
    words, call = required.parts(WORDS + CHANNEL_CALL)
    assert words == ReasoningPart(text="so it is")
    assert isinstance(call, ToolCallPart)
    assert (call.name, call.arguments) == ("f", TEXT)
    for choice in ("", "auto"):
        shaped = Answering(HARMONY, choice=choice, structured=STRUCTURED)
        assert shaped.takes(FINAL)
        assert shaped.takes(WORDS + FINAL)
        assert not shaped.takes(TEXT)
        assert shaped.takes(CHANNEL_CALL) == (choice == "auto")
        assert shaped.parts(WORDS + FINAL) == [ReasoningPart(text="so it is"), TextPart(text=TEXT)]
    free = Answering(HARMONY, choice="auto").constraint()
    free.accept(list(f"{WORDS}<|channel|>commentary to=functions.".encode()))
    assert [chr(token) for token in allowed(free.mask())] == ["f"]
