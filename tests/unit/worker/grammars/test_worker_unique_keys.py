"""No key comes twice in a JSON object, also where a schema leaves keys free."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.grammars.unique_keys import JsonKeys
from shared.messages import StructuredOutput

LIMITS = GrammarLimits()
INTEGER = {"type": "integer", "minimum": 0, "maximum": 9}


class PairTokenizer(ByteTokenizer):
    """Bytes, and tokens that end a key together with more, or hold a whole key."""

    more = (b'a"', b'a": ', b'", "a"', b'"a"', b'"a": 1', b', "x', b'\\"a"', b"aa")
    vocab_size = END + 1 + len(more)

    def token_bytes(self, token_id: int) -> bytes:
        return self.more[token_id - END - 1] if token_id > END else super().token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        data = self.more[token_id - END - 1] if token_id > END else b""
        return data.decode() if data else super().token_text(token_id)


@pytest.fixture(scope="module", params=[ByteTokenizer, PairTokenizer])
def vocabulary(request: pytest.FixtureRequest) -> TokenVocabulary:
    tokenizer = request.param()
    return TokenVocabulary(tokenizer, {END}, tokenizer.vocab_size)


def grammar_of(schema: Any, vocabulary: TokenVocabulary) -> ConstraintFactory:
    demand = StructuredOutput(kind="json_schema", definition=json.dumps(schema))
    return compile_answer(AnswerForm(demand, None), vocabulary, LIMITS)


def walk(grammar: ConstraintFactory, vocabulary: TokenVocabulary, seed: int) -> bytes | None:
    """An answer of few letters, so that keys often begin alike; None if it did not end."""
    constraint, chance, written = grammar(), random.Random(seed), b""
    for _ in range(120):
        if run := constraint.forced():
            constraint.accept(run)
            written += b"".join(map(vocabulary.token_bytes, run))
            continue
        mask = constraint.mask() or b""
        allowed = [token for token in range(len(mask) * 8) if mask[token // 8] >> token % 8 & 1]
        if END in allowed and (len(written) > 40 or allowed == [END]):
            return written
        liked = [token for token in allowed if set(vocabulary.token_bytes(token)) <= set(b'ax1{}[]":, ')]
        token = chance.choice([one for one in liked or allowed if one != END] or allowed)
        constraint.accept([token])
        written += vocabulary.token_bytes(token)
    return None


def repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


SCHEMAS = [
    {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x": INTEGER, "^a": {"type": "null"}}},
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 1},
    {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": INTEGER},
    {"type": "array", "minItems": 2, "items": {"type": "object", "additionalProperties": {"type": "object"}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_key_comes_twice(schema: dict[str, Any], vocabulary: TokenVocabulary) -> None:
    grammar = grammar_of(schema, vocabulary)
    ended = [text for seed in range(60) if (text := walk(grammar, vocabulary, seed)) is not None]
    assert len(ended) > 5
    keys = [json.loads(text, object_pairs_hook=repeated) for text in ended]
    assert any(len(one) > 1 for one in keys)


@pytest.mark.parametrize("schema", SCHEMAS[:4])
def test_what_ends_a_repeated_key_is_not_among_the_next_tokens(
    schema: dict[str, Any], vocabulary: TokenVocabulary
) -> None:
    name = "xa" if "patternProperties" in schema else "aa"
    begun = f'{{"a": 1, "{name}": 2, ' if "required" in schema else f'{{"{name}": 2, '
    for key, may_end in ((name, False), (name + "a", True)):
        constraint = grammar_of(schema, vocabulary)()
        constraint.accept(list(f'{begun}"{key}'.encode()))
        mask = constraint.mask() or b""
        ends = [token for token in range(vocabulary.vocab_size) if vocabulary.token_bytes(token)[:1] == b'"']
        assert any(mask[token // 8] >> token % 8 & 1 for token in ends) == may_end


def test_a_key_comes_again_only_where_there_is_no_other(vocabulary: TokenVocabulary) -> None:
    schema = {"type": "object", "patternProperties": {"^x$": INTEGER}, "additionalProperties": False}
    constraint = grammar_of(schema, vocabulary)()
    constraint.accept(list(b'{"x": 1, "x'))
    assert any(constraint.mask() or b"") or constraint.forced()
    constraint.accept(list(b'": 2}'))
    assert (constraint.mask() or b"")[END // 8] >> END % 8 & 1


def test_equal_tokens_have_equal_masks_however_they_come(vocabulary: TokenVocabulary) -> None:
    grammar = grammar_of(SCHEMAS[2], vocabulary)
    one, other, data = grammar(), grammar(), list(b'{"a": 1, "aa": 2, "a')
    one.accept(data)
    for token in data:
        other.accept([token])
    mask = one.mask()
    assert mask is not None
    assert mask == other.mask() == one.mask()
    assert not mask[ord('"') // 8] >> ord('"') % 8 & 1


@given(st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(st.text('a"\\{[,:', max_size=3), inner)))
def test_keys_of_json_are_followed(value: Any) -> None:
    state = JsonKeys()
    state.feed(f"<tool_call>{json.dumps(value)}</tool_call>".encode())
    assert not state.repeated
    assert state.levels == []


def test_repeated_keys_are_found_in_one_object_only() -> None:
    found: Callable[[str], bool] = lambda text: JsonKeys().repeats_with(text.encode())  # noqa: E731
    assert found('{"a": 1, "a": 2}')
    assert found('{"b": {"a": 1}, "b"')
    assert not found('{"b": {"a": 1}, "a": ["a", "a", {"a": "a"}], "c": "a"')
    assert not found('"a", "a"')
