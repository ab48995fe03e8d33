"""A constraint that is free until a marker, and bound behind it, whatever tokens the marker came in."""

import json

import pytest

from services.worker.domain.generation.token_constraint import TokenRefused
from services.worker.text.grammars.json_schema.schema_grammar import SchemaGrammar
from services.worker.text.grammars.lark_grammar import lark_text
from services.worker.text.grammars.tool_grammar import compile_lark, lark_token
from services.worker.text.grammars.triggered_constraint import Trigger, TriggeredConstraint
from tests.kits.grammars.walks import LIMITS, allowed, state, vocabulary

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SCHEMA = json.dumps(SchemaGrammar(json.dumps(PERSON), LIMITS).document)
CALL = f"start: %json {SCHEMA} {lark_text('</call>')}"
TEXT = 'Well: <cal <<call>{"name": "Ada ü"}</call> and <call>{"name": ""}</call>.'.encode()


def constraint(*, repeats: bool = True, on: str = "demo") -> TriggeredConstraint:
    known = vocabulary(on)
    call = Trigger(compile_lark(CALL, known), b"<call>")
    return TriggeredConstraint(known, [call], repeats=repeats)


@pytest.mark.parametrize("on", ["demo", "null"])
def test_text_is_free_and_a_call_is_bound(on: str) -> None:
    known, running, bound = vocabulary(on), constraint(on=on), list[bool]()
    tokens = known.tokens_of(TEXT)
    for at, token_id in enumerate(tokens):
        rebuilt = constraint(on=on)
        rebuilt.accept(tokens[:at])
        assert state(rebuilt) == state(running)
        mask = running.mask()
        bound.append(mask is not None)
        assert mask is None or token_id in allowed(mask)
        running.accept([token_id])
    free = b"".join(known.token_bytes(t) for t, b in zip(tokens, bound, strict=True) if not b)
    assert b"Ada" not in free
    assert free.endswith(b".")
    assert running.mask() is None
    assert not running.ended


def test_a_bound_part_refuses_what_does_not_fit() -> None:
    known, running = vocabulary("null"), constraint(on="null")
    running.accept(known.tokens_of(b'a <call>{"name": '))
    assert allowed(running.mask()) == [ord('"')]
    with pytest.raises(TokenRefused):
        running.accept(known.tokens_of(b"1"))


def test_without_repeats_only_the_end_follows_a_call() -> None:
    known, running = vocabulary("null"), constraint(repeats=False, on="null")
    running.accept(known.tokens_of(b'<call>{"name": "x"}</call>'))
    assert running.ended
    assert set(allowed(running.mask())) == known.ends


def test_a_token_can_be_the_marker_and_a_grammar_can_hold_from_the_start() -> None:
    known = vocabulary("null")
    grammar = compile_lark(f'start: "ab" {lark_token(ord("c"))}', known)
    running = TriggeredConstraint(known, [Trigger(grammar, token_id=ord("!"))], bound=grammar)
    assert running.forced()[:2] == [*b"ab"]
    running.accept([*b"abc"])
    assert running.mask() is None
    running.accept([*b"x!a"])
    assert allowed(running.mask()) == [ord("b")]


def test_text_behind_a_marker_in_its_token_goes_into_the_grammar_or_makes_it_text() -> None:
    known = vocabulary()
    the = next(t for t in range(known.vocab_size) if known.token_bytes(t) == b" the")
    fits = TriggeredConstraint(known, [Trigger(compile_lark('start: "he" /[0-9]+;/', known), b" t")])
    fits.accept([the])
    assert {known.token_bytes(t)[:1] for t in allowed(fits.mask())} <= {b"%d" % n for n in range(10)}
    other = TriggeredConstraint(known, [Trigger(compile_lark("start: /[0-9]+;/", known), b" t")])
    other.accept([the])
    assert other.mask() is None
