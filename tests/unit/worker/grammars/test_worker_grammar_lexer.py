"""A grammar whose lexer is full is made anew, and the answers that use it go on as before."""

import random
import threading
from typing import Any

import pytest
from llguidance import LLMatcher, LLParserLimits

from services.worker.domain.generation.token_constraint import ConstraintFactory, TokenRefused
from services.worker.text.grammars import matcher_source
from tests.kits.grammars.walks import allowed, compiled_schema, state, vocabulary

NAMES = [f"p{number}" for number in range(5)]
# each of the names needs about two fifths of what llguidance lets a lexer do between two masks
FIELDS = {name: {"type": "string", "maxLength": 9000 + at} for at, name in enumerate(NAMES)}
TEXT = b"abcdefghi" * 950


def long_grammar() -> ConstraintFactory:
    return compiled_schema({"type": "object", "properties": FIELDS}, "null")


def begin(name: str) -> list[int]:
    """Returns the tokens before the text of a field."""
    return [*f'{{"{name}": "'.encode()]


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the name of the thread of each compilation."""
    names: list[str] = []

    def counted(*arguments: Any, **options: Any) -> LLMatcher:
        names.append(threading.current_thread().name)
        return LLMatcher(*arguments, **options)

    monkeypatch.setattr(matcher_source, "LLMatcher", counted)
    return names


def test_answers_one_after_another_all_go_on(compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        matcher_source, "parser_limits", lambda _: LLParserLimits(max_lexer_states=5000, verbose_errors=False)
    )
    grammar = long_grammar()
    for name in NAMES * 2:
        constraint = grammar()
        constraint.accept(begin(name))
        for byte in TEXT[:250]:
            assert byte in allowed(constraint.mask())
            constraint.accept([byte])
        constraint.accept([*b'"}'])
        assert constraint.ended
    assert 1 < len(compiles) < 2 * len(NAMES), "the first one, and one each time it was full"


def test_answers_that_share_a_full_lexer_share_the_next_one_too(compiles: list[str]) -> None:
    grammar = long_grammar()
    running = [grammar() for _ in NAMES]
    for name, constraint in zip(NAMES, running, strict=True):
        constraint.accept(begin(name))
    for at in range(0, len(TEXT), 900):
        for constraint in running:
            constraint.accept([*TEXT[at : at + 900]])
            assert constraint.forced() == []
    assert 1 < len(compiles) <= len(NAMES)
    for name, constraint in zip(NAMES, running, strict=True):
        alone = long_grammar()()
        alone.accept([*begin(name), *TEXT])
        assert state(constraint) == state(alone)


def test_one_answer_that_fills_a_lexer_alone_goes_on(compiles: list[str]) -> None:
    """What llguidance looks at for masks and forced tokens is more than what the answer goes through."""
    constraint = long_grammar()()
    constraint.accept(begin("p0"))
    for byte in TEXT:
        constraint.accept([byte])
        constraint.forced()
    assert len(compiles) > 1
    constraint.accept([*b'"}'])
    assert constraint.ended


def test_a_long_answer_is_resumed_at_once_on_another_group() -> None:
    grammar = compiled_schema({"type": "string", "maxLength": 50_000}, "null")
    draw = random.Random(1)
    constraint = grammar()
    constraint.accept([*b'"', *draw.choices(b"abcdefghijklmnopqrstuvwxyz .,;0123", k=40_000)])
    assert ord("x") in allowed(constraint.mask())
    constraint.accept([*b'"'])
    assert constraint.ended


def test_a_forbidden_token_is_refused_without_a_new_lexer(compiles: list[str]) -> None:
    constraint = compiled_schema({"type": "integer"})()
    with pytest.raises(TokenRefused):
        constraint.accept(vocabulary().tokens_of(b"x"))
    assert len(compiles) == 1


def test_a_slow_grammar_is_compiled_in_a_thread_before_it_is_full(
    compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher_source, "SLOW_S", 0.0)
    grammar = long_grammar()
    for name in NAMES:
        constraint = grammar()
        constraint.accept(begin(name))
        constraint.accept([*TEXT])
    first, *later = compiles
    assert later
    assert first == "MainThread"
    assert "MainThread" not in later
