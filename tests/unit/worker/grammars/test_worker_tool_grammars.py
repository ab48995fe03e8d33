"""Grammars of tool calls: what they let pass is read as the calls that they demand."""

import json
import random

import pytest

from services.worker.domain.generation.token_constraint import TokenConstraint, TokenRefused
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.answers.known_formats import BY_NAME
from services.worker.text.answers.parser import AnswerParser
from services.worker.text.answers.tool_format import AnswerFormat
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.tool_prompt import parameters_of
from shared.errors import InvalidRequest
from shared.messages import ToolCallPart, ToolDefinition

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    ToolDefinition(name="get_weather", parameters=json.dumps(SCHEMA), strict=True),
    ToolDefinition(name="now", parameters='{"type": "object", "additionalProperties": false}'),
]
ENFORCED = [name for name, known in BY_NAME.items() if known.calls and known.calls[0].enforced]
LIMITS = GrammarLimits()


@pytest.fixture(scope="module")
def vocabulary() -> TokenVocabulary:
    tokenizer = ByteTokenizer()
    return TokenVocabulary(tokenizer, {END}, tokenizer.vocab_size)


def walk(constraint: TokenConstraint, seed: int) -> str:
    """Returns a random text that a constraint lets pass, with some care to come to its end."""
    chance, tokens = random.Random(seed), list[int]()
    while not constraint.ended and len(tokens) < 2000:
        mask = constraint.mask()
        assert mask is not None
        allowed = [token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1]
        plain = [token for token in allowed if token < 128 and token != END]
        token = END if END in allowed and chance.random() < 0.7 else chance.choice(plain or allowed)
        if token == END:
            break
        constraint.accept([token])
        tokens.append(token)
    return bytes(tokens).decode()


def calls_in(form: str, text: str) -> list[tuple[str, str]]:
    parser = AnswerParser(
        AnswerFormat(tools=BY_NAME[form]), {tool.name: parameters_of(tool) for tool in TOOLS}, str
    )
    parts = parser.feed(text) + parser.finish()
    assert parts
    assert all(isinstance(part, ToolCallPart) for part in parts), (text, parts)
    found: list[tuple[str, str]] = []
    for part in parts:
        assert isinstance(part, ToolCallPart)
        if part.name:
            found.append((part.name, ""))
        found[-1] = (found[-1][0], found[-1][1] + part.arguments)
    return found


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("form", ENFORCED)
def test_a_required_call_is_read_as_what_it_must_be(
    form: str, many: bool, vocabulary: TokenVocabulary
) -> None:
    calls = EnforcedCalls(BY_NAME[form].calls[0], TOOLS, {}, many=many, required=True)
    grammar = compile_calls(calls, vocabulary, LIMITS)
    numbers = set()
    for seed in range(6):
        found = calls_in(form, walk(grammar(), seed))
        numbers.add(len(found))
        for name, arguments in found:
            value = json.loads(arguments)
            if name == "now":
                assert value == {}
            else:
                assert set(value) == {"city", "days"}
                assert value["days"] in (1, 2)
    assert many or numbers == {1}


@pytest.mark.parametrize("form", ["hermes", "granite", "deepseek_v31", "mistral_v11"])
def test_a_call_that_is_begun_is_enforced_from_its_opening_on(form: str, vocabulary: TokenVocabulary) -> None:
    syntax = BY_NAME[form].calls[0]
    constraint = compile_calls(
        EnforcedCalls(syntax, TOOLS, {}, many=True, required=False), vocabulary, LIMITS
    )()
    constraint.accept(list(b"I look. "))
    assert constraint.mask() is None
    constraint.accept(list(syntax.opens[0].encode()))
    mask = constraint.mask()
    assert mask is not None or constraint.forced()


def test_a_strict_schema_that_is_not_enforced_is_refused_and_another_is_any_object(
    vocabulary: TokenVocabulary,
) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"not": {"type": "string"}}}})
    syntax = BY_NAME["hermes"].calls[0]
    strict = [ToolDefinition(name="f", parameters=schema, strict=True)]
    with pytest.raises(InvalidRequest) as refused:
        compile_calls(EnforcedCalls(syntax, strict, {}, many=False, required=True), vocabulary, LIMITS)
    assert refused.value.data["param"] == "tools"
    assert refused.value.data["keyword"] == "not"
    assert refused.value.data["index"] == 0
    loose = [ToolDefinition(name="f", parameters=schema)]
    compile_calls(EnforcedCalls(syntax, loose, {}, many=False, required=True), vocabulary, LIMITS)


@pytest.mark.parametrize(
    ("schema", "fits", "differs"),
    [
        (
            {"properties": {"a": {"type": "integer", "not": {"const": 3}}}, "required": ["a"]},
            '{"a": 3}',
            '{"a": "x"}',
        ),
        (
            {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "b": {"enum": [1]}}},
            '{"a": "x", "b": 1}',
            '{"a": "x", "b": 2}',
        ),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"required": ["b"], "properties": {"a": {"type": "integer"}}}, '{"a": 1, "b": 2}', '{"a": ""}'),
    ],
    ids=["not", "oneOf", "closed", "needs more"],
)
def test_what_is_not_enforced_is_left_out_and_the_rest_holds(
    schema: dict[str, object], fits: str, differs: str, vocabulary: TokenVocabulary
) -> None:
    tool = ToolDefinition(name="f", parameters=json.dumps(schema))
    calls = EnforcedCalls(BY_NAME["hermes"].calls[0], [tool], {}, many=False, required=True)
    grammar = compile_calls(calls, vocabulary, LIMITS)
    before, after = '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"
    written = grammar()
    written.accept(list(f"{before}{fits}{after}".encode()))
    assert written.ended
    with pytest.raises(TokenRefused):
        grammar().accept(list(f"{before}{differs}{after}".encode()))
