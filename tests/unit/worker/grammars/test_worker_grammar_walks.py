"""Random walks under the masks arrive at what was asked for, and their state can be rebuilt anywhere."""

import json
import re
import time

import pytest

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    ConstraintFailed,
    TokenRefused,
    is_too_complex,
)
from tests.kits.chaos.scale import scaled
from tests.kits.grammars.walks import (
    SMOLLM2,
    allowed,
    compiled,
    compiled_schema,
    state,
    takes,
    vocabulary,
    walk,
)
from tests.kits.schemas.schema_case import validator

ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "kind": {"enum": ["small", "large", 'äöü "quoted"', None]},
        "count": {"type": "integer", "minimum": 1, "maximum": 120},
        "day": {"type": "string", "format": "date"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "parts"],
    "additionalProperties": False,
    "$defs": {
        "part": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
                "price": {"type": "number"},
            },
            "required": ["code"],
            "additionalProperties": {"type": "boolean"},
        }
    },
}
MODELS = [
    "demo",
    "null",
    pytest.param("smollm2", marks=pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2} is not there")),
]


# masks of a large vocabulary take ten times as long
WALKS = {"demo": 25, "null": 25, "smollm2": scaled(9, 25)}


def texts(grammar: ConstraintFactory, on: str, times: int = 1) -> list[str]:
    """Returns the texts of the walks that ended."""
    seeds = range(times * WALKS[on])
    return [ended[1] for seed in seeds if (ended := walk(grammar, seed, on=on)) is not None]


@pytest.mark.parametrize("on", MODELS)
def test_walks_through_a_schema_are_valid(on: str) -> None:
    found = texts(compiled_schema(ORDER, on), on)
    judge = validator(ORDER)
    assert len(found) > WALKS[on] / 2
    assert [text for text in found if not judge.is_valid(json.loads(text))] == []


@pytest.mark.parametrize("on", MODELS)
def test_walks_through_the_other_kinds_have_their_form(on: str) -> None:
    assert all(isinstance(json.loads(text), dict) for text in texts(compiled("json_object", on=on), on))
    regex = r"(?:[a-f]{2}|ä+)-[0-9]{1,3}(?:\.x)?"
    assert all(re.fullmatch(regex, text) for text in texts(compiled("regex", regex, on=on), on))
    choices = ("a", "ab", "", 'q"\\ \n', "😀", "yes", "\x00")
    found = texts(compiled("choice", "", *choices, on=on), on, 3)
    assert set(found) <= set(choices)
    assert len(set(found)) > 3
    lark = 'start: greeting ("," " " greeting)*\ngreeting: "hi" | /[A-Z][a-z]{1,3}/'
    assert all(
        re.fullmatch(r"(hi|[A-Z][a-z]{1,3})(, (hi|[A-Z][a-z]{1,3}))*", t)
        for t in texts(compiled("grammar", lark, on=on), on)
    )
    ebnf = 'root ::= "a" [0-9]+ tail?\ntail ::= "!" | "?"\n'
    assert all(re.fullmatch(r"a[0-9]+[!?]?", text) for text in texts(compiled("grammar", ebnf, on=on), on))


@pytest.mark.parametrize("on", MODELS)
def test_the_state_after_any_tokens_is_that_of_the_running_constraint(on: str) -> None:
    grammar = compiled_schema(ORDER, on)
    ended = next(found for seed in range(50) if (found := walk(grammar, seed, on=on)) is not None)
    tokens, running = ended[0], grammar()
    for at, token_id in enumerate(tokens):
        rebuilt = grammar()
        rebuilt.accept(tokens[:at])
        assert state(rebuilt) == state(running)
        assert state(running) == state(running)  # asking changes nothing
        assert token_id in allowed(running.mask())
        running.accept([token_id])


@pytest.mark.parametrize("on", MODELS)
def test_forced_tokens_are_the_only_text_that_may_come(on: str) -> None:
    known, grammar = vocabulary(on), compiled_schema(ORDER, on)
    constraint = grammar()
    forced = constraint.forced()
    assert b'{"name": "'.startswith(b"".join(map(known.token_bytes, forced)))
    constraint.accept(forced)
    only = compiled("choice", "", "a text without any choice at all", on=on)()
    only.accept(only.forced())
    while not only.ended:
        (token_id, *_) = allowed(only.mask())
        only.accept([token_id])
    assert set(allowed(only.mask())) == known.ends


def test_the_end_may_come_exactly_where_the_grammar_ends() -> None:
    known, grammar = vocabulary(), compiled("regex", "[0-9]{2,3}")
    (end,) = known.ends
    constraint = grammar()
    for count in range(4):
        assert (end in allowed(constraint.mask())) == (count >= 2)
        assert constraint.ended == (count == 3)
        if count < 3:
            constraint.accept(known.tokens_of(b"7"))
    constraint.accept([end])
    assert state(constraint) == (known.end_mask, [], True)
    early = grammar()
    with pytest.raises(TokenRefused):
        early.accept([end])
    wrong = grammar()
    with pytest.raises(TokenRefused):
        wrong.accept(known.tokens_of(b"x"))


def test_a_mask_has_the_size_of_the_models_vocabulary() -> None:
    known = vocabulary()
    assert len(compiled("json_object")().mask() or b"") == (known.vocab_size + 7) // 8


def test_choices_constrain_each_for_itself() -> None:
    grammar = compiled("choice", "", "left", "right")
    first, second = grammar(), grammar()
    first.accept(vocabulary().tokens_of(b"left"))
    assert first.ended
    assert not second.ended
    assert takes(grammar, "right")


def test_a_string_with_a_length_limit_may_be_long() -> None:
    constraint = compiled_schema({"type": "string", "maxLength": 50_000}, "null")()
    constraint.accept([*b'"'])
    for _ in range(400):
        constraint.accept([*b"the quick brown fox jumps"])
        assert ord('"') in allowed(constraint.mask())


def test_an_ambiguous_grammar_ends_before_its_masks_are_slow() -> None:
    constraint, times = (
        compiled("grammar", 'start: a\na: "x" | a a | a a a | "y" a', on="null")(),
        list[float](),
    )

    def go_on() -> None:
        for _ in range(1000):
            began = time.thread_time()
            constraint.accept([ord("x")])
            constraint.mask()
            times.append(time.thread_time() - began)

    with pytest.raises(ConstraintFailed):
        go_on()
    assert max(times) < 0.5


@pytest.mark.parametrize(
    "grammar",
    [
        'start: start start | "a" | ""',
        'start: start start start | "a"',
        'start: "a" start | start start | ""',
    ],
)
def test_a_token_that_makes_a_grammar_too_complex_is_the_fault_of_the_grammar(grammar: str) -> None:
    """The parser's limit may be met while it takes a token; the token is not one that the grammar forbids."""
    constraint = compiled("grammar", grammar, on="null")()

    def go_on() -> None:
        for _ in range(2000):
            constraint.mask()
            constraint.accept([ord("a")])

    with pytest.raises(ConstraintFailed) as caught:
        go_on()
    assert is_too_complex(caught.value), caught.value


def test_a_token_that_a_grammar_forbids_is_no_fault_of_the_grammar() -> None:
    constraint = compiled("grammar", 'start: "ab"', on="null")()
    with pytest.raises(TokenRefused) as caught:
        constraint.accept([ord("x")])
    assert not is_too_complex(caught.value)
