"""Calls in forms that are not plain JSON: what a grammar lets pass is read as arguments that fit the schema.

Schemas are those of `tests/kits/schemas`; `make chaos` tries all of them in each form.
"""

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from services.worker.domain.generation.token_constraint import TokenConstraint, TokenRefused
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.answers.known_formats import BY_NAME
from services.worker.text.answers.parser import AnswerParser
from services.worker.text.answers.tool_format import AnswerFormat
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.errors import InvalidRequest
from shared.messages import ToolCallPart, ToolDefinition
from shared.messages.answer_parts import join_parts
from tests.kits.chaos.scale import scaled
from tests.kits.schemas.corpus import corpus
from tests.kits.schemas.schema_case import validator

LIMITS = GrammarLimits()
EVERY = int(os.environ.get("RYZ_TEST_SCHEMAS", scaled("47", "1")))
FORMS = ("qwen3_coder", "glm45", "minimax_m2", "seed_oss", "functiongemma", "gemma", "pythonic")
MOST_TOKENS = 1500


@pytest.fixture(scope="module")
def vocabulary() -> TokenVocabulary:
    tokenizer = ByteTokenizer()
    return TokenVocabulary(tokenizer, {END}, tokenizer.vocab_size)


def declared() -> Iterator[dict[str, Any]]:
    """Yields parameters of functions with the schemas of the set; those with references stand alone."""
    for case in corpus():
        if "$" not in json.dumps(case.schema):
            types = {"a": {"type": "string"}, "x": case.schema, "n": {"type": ["integer", "null"]}}
            yield {"type": "object", "properties": types, "required": ["x"]}
        elif isinstance(case.schema, dict) and case.schema.get("type") == "object":
            yield case.schema


def enforced(form: str, parameters: dict[str, Any], *, strict: bool = True) -> EnforcedCalls:
    tool = ToolDefinition(name="f", parameters=json.dumps(parameters), strict=strict)
    return EnforcedCalls(BY_NAME[form].calls[0], [tool], {}, many=False, required=True)


def walk(constraint: TokenConstraint, seed: int, marks: tuple[str, ...]) -> str | None:
    """Returns a random text of a grammar that seeks its end; None if it did not find it."""
    chance, written = random.Random(seed), bytearray()
    while not constraint.ended and len(written) < MOST_TOKENS:
        if run := constraint.forced():
            constraint.accept(run)
            written += bytes(run)
            continue
        mask = constraint.mask() or b""
        allowed = [token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1]
        if END in allowed and chance.random() < 0.7:
            return written.decode()
        wanted = {_next_of(bytes(written), mark.encode()) for mark in marks} | {*b']})",'}
        closing = [token for token in allowed if token in wanted]
        late = 0.9 if len(written) > 300 else 0.4
        plain = [token for token in allowed if token < 128] or allowed
        token = chance.choice(closing if closing and chance.random() < late else plain)
        constraint.accept([token])
        written.append(token)
    return written.decode() if constraint.ended else None


def _next_of(written: bytes, mark: bytes) -> int:
    """Returns the character that goes on with a mark, of which the text may end with a beginning."""
    begun = next((size for size in range(len(mark) - 1, 0, -1) if written.endswith(mark[:size])), 0)
    return mark[begun]


def arguments_in(form: str, text: str, parameters: dict[str, Any]) -> Any:
    parser = AnswerParser(AnswerFormat(tools=BY_NAME[form]), {"f": parameters}, str)
    parts = join_parts(parser.feed(text) + parser.finish())
    assert [type(part) for part in parts] == [ToolCallPart], (text, parts)
    assert isinstance(parts[0], ToolCallPart)
    assert parts[0].name == "f"
    return json.loads(parts[0].arguments)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_grammar_lets_pass_fits_the_schema(form: str, vocabulary: TokenVocabulary) -> None:
    syntax, walked, refused = BY_NAME[form].calls[0], 0, 0
    for number, parameters in enumerate(declared()):
        if number % EVERY:
            continue
        try:
            grammar = compile_calls(enforced(form, parameters), vocabulary, LIMITS)
        except InvalidRequest:
            refused += 1
            continue
        for seed in range(2):
            text = walk(grammar(), seed, (syntax.values[1],) if syntax.values[1] else ())
            if text is not None:
                assert validator(parameters).is_valid(arguments_in(form, text, parameters)), (
                    text,
                    parameters,
                )
                walked += 1
    assert walked > refused


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["metric", "imperial"]},
        "where": {
            "type": "object",
            "properties": {"floor": {"type": "boolean"}, "rooms": {"items": {"type": "string"}}},
        },
    },
    "required": ["city", "days"],
}  # fmt: skip
WRITTEN = {
    "qwen3_coder": """<tool_call>
<function=f>
<parameter=city>
St. <b>Pölten</b>
</parameter>
<parameter=days>
3
</parameter>
<parameter=where>
{"floor": true, "rooms": ["a"]}
</parameter>
</function>
</tool_call>""",
    "glm45": """<tool_call>f
<arg_key>city</arg_key>
<arg_value>St. <b>Pölten</b></arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>where</arg_key>
<arg_value>{"floor": true, "rooms": ["a"]}</arg_value>
</tool_call>""",
    "minimax_m2": """<minimax:tool_call>
<invoke name="f">
<parameter name="city">St. <b>Pölten</b></parameter>
<parameter name="days">3</parameter>
<parameter name="where">{"floor": true, "rooms": ["a"]}</parameter>
</invoke>
</minimax:tool_call>""",
    "seed_oss": """<seed:tool_call>
<function=f>
<parameter=city>St. <b>Pölten</b></parameter>
<parameter=days>3</parameter>
<parameter=where>{"floor": true, "rooms": ["a"]}</parameter>
</function>
</seed:tool_call>""",
    "functiongemma": "<start_function_call>call:f{city:<escape>St. <b>Pölten</b><escape>,days:3,"
    "where:{floor:true,rooms:[<escape>a<escape>]}}<end_function_call>",
    "gemma": """```tool_code
f(city="St. <b>Pölten</b>", days=3, where={"floor": True, "rooms": ["a"]})
```""",
    "pythonic": '[f(city="St. <b>Pölten</b>", days=3, where={"floor": True, "rooms": ["a"]})]',
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_the_form_of_the_model_passes_and_is_read(form: str, vocabulary: TokenVocabulary) -> None:
    grammar = compile_calls(enforced(form, WEATHER), vocabulary, LIMITS)
    constraint = grammar()
    constraint.accept(list(WRITTEN[form].encode()))
    assert constraint.ended
    value = {"city": "St. <b>Pölten</b>", "days": 3, "where": {"floor": True, "rooms": ["a"]}}
    assert arguments_in(form, WRITTEN[form], WEATHER) == value
    for wrong in (WRITTEN[form].replace("3", "0"), WRITTEN[form].replace("city", "town")):
        with pytest.raises(TokenRefused):
            grammar().accept(list(wrong.encode()))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_form_cannot_express_is_refused_by_name_if_it_is_strict(
    form: str, vocabulary: TokenVocabulary
) -> None:
    never = {"type": "object", "properties": {"a": {"type": "string", "format": "date", "minLength": 11}}}
    with pytest.raises(InvalidRequest):
        compile_calls(enforced(form, never), vocabulary, LIMITS)
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 3}]}}}
    with pytest.raises(InvalidRequest) as refused:
        compile_calls(enforced(form, schema), vocabulary, LIMITS)
    assert refused.value.data == {
        "param": "tools",
        "keyword": "oneOf",
        "pointer": "/properties/a",
        "index": 0,
    }
    compile_calls(enforced(form, schema, strict=False), vocabulary, LIMITS)
