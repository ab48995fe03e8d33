"""Control tokens that mark parts of an answer are seen by its reader and its grammar; others are hidden."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken

from services.worker.domain.generation.token_constraint import TokenRefused
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.model_files.model import Model
from services.worker.text.answers.known_formats import BY_NAME
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.tokenizer import LibraryTokenizer, read_tokenizer
from shared.messages import ChatMessage, GenerateRequest, TextPart, ToolCallPart, ToolDefinition, ToolUse
from shared.messages.answer_parts import join_parts
from tests.kits.worker.tokenizers import byte_level

TEMPLATE = (
    "{{ tools }}<|tool_call|>{% for m in messages %}<|im_start|>{{ m.content or '' }}"
    "{{ m.tool_calls | tojson if m.tool_calls else '' }}<|im_end|>{% endfor %}"
)
TOOL = ToolDefinition(name="now", parameters='{"type": "object", "additionalProperties": false}', strict=True)
MARKS = (
    "<|tool_call|>", "<|action_start|>", "<|plugin|>", "<start_function_call>", "<end_function_call>",
    "<escape>",
)  # fmt: skip
CALL = '<|tool_call|>[{"name": "now", "arguments": {}}]'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LibraryTokenizer:
    path = tmp_path_factory.mktemp("markers") / "tokenizer.json"
    made = byte_level()
    made.add_special_tokens([AddedToken(text) for text in MARKS])
    made.save(str(path))
    return read_tokenizer(Path(path))


def token(tokenizer: LibraryTokenizer, text: str) -> int:
    (token_id,) = tokenizer.encode(text, add_special_tokens=False)
    return token_id


def request(tools: ToolUse | None) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", model="m", messages=[ChatMessage(role="user", content="x")], tools=tools
    )


def test_a_marker_that_is_a_special_token_begins_a_call_and_is_hidden_otherwise(
    tokenizer: LibraryTokenizer,
) -> None:
    ends = frozenset({token(tokenizer, "<|im_end|>")})
    forms = AnswerForms(Model("m", 4096, ends, tokenizer, ChatTemplate(TEMPLATE, {})))
    form = forms.form_of(request(ToolUse(tools=[TOOL])), [1])
    assert form is not None
    tokens = tokenizer.encode(f"é <|im_start|>{CALL}", add_special_tokens=False)
    detokenizer, reader = form.detokenizer(tokenizer.detokenizer()), form.reader(0)
    texts = [detokenizer.feed(token_id) for token_id in tokens]
    assert "<|im_start|>" not in "".join(texts)
    for text in texts:
        reader.read(text, None, None)
    reader.read(detokenizer.flush(), "stop", None)
    first, call = join_parts(reader.unsent)
    assert first == TextPart(text="é")
    assert isinstance(call, ToolCallPart)
    assert (call.name, call.arguments) == ("now", "{}")
    assert forms.form_of(request(None), [1]) is None
    plain = tokenizer.detokenizer()
    assert "<|tool_call|>" not in "".join(map(plain.feed, tokens))


@pytest.mark.parametrize("form", ["granite", "internlm"])
def test_a_grammar_knows_the_control_tokens_of_a_form(form: str, tokenizer: LibraryTokenizer) -> None:
    end = token(tokenizer, "<|im_end|>")
    vocabulary, syntax = TokenVocabulary(tokenizer, {end}, tokenizer.vocab_size), BY_NAME[form].calls[0]
    marks = ("<|tool_call|>", "<|action_start|>", "<|plugin|>")
    control = {text: token(tokenizer, text) for text in marks if text in syntax.opens[0]}

    required = EnforcedCalls(syntax, [TOOL], control, many=False, required=True)
    constraint = compile_calls(required, vocabulary, GrammarLimits())()
    written: list[int] = []
    while forced := constraint.forced():
        constraint.accept(forced)
        written += forced
    assert written[: len(control)] == list(control.values())
    text = "".join(map(tokenizer.token_text, written[len(control) :]))
    value = json.loads(text.partition("<|action_end|>")[0])
    assert (value if isinstance(value, dict) else value[0])["name"] == "now"

    free = EnforcedCalls(syntax, [TOOL], control, many=True, required=False)
    begun = compile_calls(free, vocabulary, GrammarLimits())()
    begun.accept(tokenizer.encode("the", add_special_tokens=False))
    assert begun.mask() is None
    begun.accept(list(control.values()))
    assert begun.mask() is not None


def test_a_text_between_control_tokens_is_bound_as_well(tokenizer: LibraryTokenizer) -> None:
    end, syntax = token(tokenizer, "<|im_end|>"), BY_NAME["functiongemma"].calls[0]
    vocabulary = TokenVocabulary(tokenizer, {end}, tokenizer.vocab_size)
    control = {text: token(tokenizer, text) for text in (*syntax.opens, *syntax.closes, "<escape>")}
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}
    tool = ToolDefinition(name="now", parameters=json.dumps(schema), strict=True)
    grammar = compile_calls(
        EnforcedCalls(syntax, [tool], control, many=False, required=True), vocabulary, GrammarLimits()
    )
    for text, fits in (("", True), ("é <", True), ("abcd", False)):
        written = f"<start_function_call>call:now{{a:<escape>{text}<escape>}}<end_function_call>"
        constraint = grammar()
        if fits:
            constraint.accept(tokenizer.encode(written, add_special_tokens=False))
            assert constraint.ended
        else:
            with pytest.raises(TokenRefused):
                constraint.accept(tokenizer.encode(written, add_special_tokens=False))
