"""The text of a control token in a grammar is text: other tokens spell it, whatever names it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.model_files.load_model import load_model
from services.worker.text.answers.known_formats import BY_NAME
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.tokenizer import LibraryTokenizer
from shared.errors import InvalidRequest
from shared.messages import StructuredOutput, ToolDefinition
from tests.kits.grammars.walks import DEMO, SMOLLM2, Kind, allowed, compiled, compiled_schema, vocabulary
from tests.kits.worker.tokenizers import byte_level, sentence_piece

LIMITS = GrammarLimits()
MODELS = [
    "demo",
    pytest.param("smollm2", marks=pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2} is not there")),
]


def in_object(value: Any) -> dict[str, Any]:
    properties = {"a": {"type": "boolean"}, "m": value}
    return {"type": "object", "properties": properties, "required": ["a", "m"], "additionalProperties": False}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{ord(char):02x}" for char in text)


# how a caller can make a text the only one that may come, and what the answer is then
MODES: dict[str, Callable[[str], tuple[Kind, str, str]]] = {
    "const": lambda t: ("json_schema", json.dumps({"const": t}), quoted(t)),
    "const behind a choice": lambda t: (
        "json_schema",
        json.dumps(in_object({"const": t})),
        f'{{"a": true, "m": {quoted(t)}}}',
    ),
    "enum": lambda t: ("json_schema", json.dumps({"enum": [f"x{t}y"]}), quoted(f"x{t}y")),
    "property": lambda t: (
        "json_schema",
        json.dumps({"type": "object", "properties": {t: {"type": "null"}}, "required": [t]}),
        f"{{{quoted(t)}: null}}",
    ),
    "pattern": lambda t: (
        "json_schema",
        json.dumps({"type": "string", "pattern": f"^{escaped(t)}$"}),
        quoted(t),
    ),
    "regex": lambda t: ("regex", escaped(t * 2), t * 2),
    "grammar": lambda t: ("grammar", f"start: {quoted(t)} /[a]/", f"{t}a"),
    "gbnf": lambda t: ("grammar", f"root ::= {quoted(t)}", t),
}  # fmt: skip


def only_answer(grammar: ConstraintFactory, known: TokenVocabulary, control: set[int]) -> bytes:
    """Follows a grammar that leaves next to no choice; no token of the answer is a control token."""
    constraint, text = grammar(), b""
    for _ in range(200):
        chosen = constraint.forced()
        if not chosen:
            may = [token for token in allowed(constraint.mask()) if token not in known.ends]
            if not may:
                return text
            assert control.isdisjoint(may)
            likely = [token for token in may if known.token_bytes(token) in (b" true", b"a", b" null")]
            chosen = likely[:1] or may[-1:]
        assert control.isdisjoint(chosen)
        constraint.accept(chosen)
        text += b"".join(map(known.token_bytes, chosen))
    raise AssertionError(f"no end: {text!r}")


@pytest.mark.parametrize("on", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_the_text_of_every_control_token_is_spelled_with_other_tokens(mode: str, on: str) -> None:
    model = load_model(DEMO if on == "demo" else SMOLLM2)
    assert model.control_texts
    for text in model.control_texts:
        kind, definition, answer = MODES[mode](text)
        grammar = compiled(kind, definition, on=on)
        assert only_answer(grammar, vocabulary(on), set(model.tokenizer.special_ids)) == answer.encode()


@pytest.mark.parametrize("on", MODELS)
def test_choices_may_be_texts_of_control_tokens(on: str) -> None:
    model = load_model(DEMO if on == "demo" else SMOLLM2)
    texts = sorted(model.control_texts)
    grammar = compiled("choice", "", *texts, on=on)
    found = only_answer(grammar, vocabulary(on), set(model.tokenizer.special_ids))
    assert found.decode() in texts


def pieces_without_bytes() -> Tokenizer:
    """A vocabulary of whole pieces, of which the end is one, and an added token that is not special."""
    texts = [
        "<unk>",
        "</s>",
        "<s",
        ">",
        "<",
        "/",
        "s",
        '"',
        "{",
        "}",
        ":",
        " ",
        "a",
        "b",
        "éa",
        "<think>",
        ",",
    ]
    tokenizer = Tokenizer(models.Unigram([(text, -1.0) for text in texts], unk_id=0, byte_fallback=False))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def test_no_kind_of_tokenizer_makes_a_control_token_of_text() -> None:
    cases = (
        (byte_level(), ["<|im_end|>", "<|im_start|>", "<plain token é>"], frozenset({"<plain token é>"})),
        (sentence_piece(), ["</s>"], frozenset[str]()),
        (pieces_without_bytes(), ["</s>"], frozenset[str]()),
    )
    for made, texts, more in cases:
        tokenizer = LibraryTokenizer(made)
        control = {tokenizer.vocabulary()[text] for text in texts}
        end = max(tokenizer.special_ids)
        known = TokenVocabulary(tokenizer, {end}, tokenizer.vocab_size, more)
        for text in texts:
            for whole in (text, f"a{text}", f"{text}{text}b"):
                ids = known.tokens_of(whole.encode())
                assert b"".join(map(known.token_bytes, ids)) == whole.encode()
                assert control.isdisjoint(ids)
            grammar = compile_structured(StructuredOutput(kind="choice", choices=[f"a{text}"]), known, LIMITS)
            assert only_answer(grammar, known, control) == f"a{text}".encode()


UNSPELLED: list[tuple[Kind, str, str]] = [
    ("json_schema", json.dumps(in_object({"const": "aé"})), "const"),
    ("json_schema", json.dumps({"type": "array", "items": {"enum": ["a", {"b": ["c"]}]}}), "enum"),
    ("json_schema", json.dumps({"type": "object", "properties": {"b": {"const": "z"}}}), "const"),
    ("json_schema", json.dumps({"type": "object", "properties": {"z": True}}), "properties"),
    ("json_schema", json.dumps({"type": "object", "required": ["z"]}), "required"),
    ("json_schema", json.dumps({"type": "string", "pattern": "^a+z$"}), "pattern"),
    ("regex", "[ab]{20}z", "regex"),
    ("grammar", 'start: /[ab]{20}/ "z"', "grammar"),
    ("grammar", r'start: /[ab]{20}/ "\u007a"', "grammar"),
]


@pytest.mark.parametrize(("kind", "definition", "keyword"), UNSPELLED)
def test_texts_that_no_tokens_spell_are_refused_at_once(kind: Kind, definition: str, keyword: str) -> None:
    tokenizer = LibraryTokenizer(pieces_without_bytes())
    known = TokenVocabulary(tokenizer, {1}, tokenizer.vocab_size)
    with pytest.raises(InvalidRequest) as refused:
        compile_structured(StructuredOutput(kind=kind, definition=definition), known, LIMITS)
    assert (refused.value.data["param"], refused.value.data["keyword"]) == ("structured", keyword)
    with pytest.raises(InvalidRequest, match=r"U\+007A"):
        compile_structured(StructuredOutput(kind="choice", choices=["a", "abz"]), known, LIMITS)


def test_texts_in_tokens_of_several_characters_are_spelled() -> None:
    tokenizer = LibraryTokenizer(pieces_without_bytes())
    known = TokenVocabulary(tokenizer, {1}, tokenizer.vocab_size)
    assert (known.unspelled("aéab"), known.unspelled("aéb"), known.unspelled("a b")) == ("", "é", "")
    choice = compile_structured(StructuredOutput(kind="choice", choices=["baéa"]), known, LIMITS)
    assert only_answer(choice, known, set()) == "baéa".encode()


def test_a_regex_leaves_out_what_no_tokens_spell() -> None:
    tokenizer = LibraryTokenizer(pieces_without_bytes())
    known = TokenVocabulary(tokenizer, {1}, tokenizer.vocab_size)
    regex = compile_structured(StructuredOutput(kind="regex", definition="a(z|b)(z|/)"), known, LIMITS)
    assert only_answer(regex, known, set()) == b"ab/"


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2} is not there")
def test_smollm2_cannot_write_some_characters() -> None:
    known = vocabulary("smollm2")
    assert [known.unspelled(text) for text in ("a\x04", "\U00050000", "😀é\x03")] == [
        "\x04",
        "\U00050000",
        "",
    ]
    with pytest.raises(InvalidRequest) as refused:
        compiled_schema(in_object({"enum": ["a", "\U00050000"]}), on="smollm2")
    assert (refused.value.data["keyword"], refused.value.data["pointer"]) == ("enum", "/properties/m")


DIRECTIVES = [
    'start: <[2]> // ::=',
    'start: "a" <[3]> "b" // x ::=',
    'start: /a\nb/ <[3]> /c/',
    'start: "a" @b // ::=\n',
    'start: "a" | %json {"const": 1} // ::=\n',
]  # fmt: skip


@pytest.mark.parametrize("definition", DIRECTIVES)
def test_no_spelling_of_a_grammar_names_tokens(definition: str) -> None:
    with pytest.raises(InvalidRequest, match="not served in a grammar"):
        compiled("grammar", definition)


@pytest.mark.parametrize(
    "form", [name for name, known in BY_NAME.items() if known.calls and known.calls[0].enforced]
)
def test_constants_and_names_of_tools_are_text_beside_the_control_tokens_of_a_form(form: str) -> None:
    syntax = BY_NAME[form].calls[0]
    marks = sorted({mark for mark in syntax.texts() if len(mark) > 3})
    made = byte_level()
    made.add_special_tokens(marks)
    tokenizer = LibraryTokenizer(made)
    control = {mark: tokenizer.vocabulary()[mark] for mark in marks}
    known = TokenVocabulary(tokenizer, {tokenizer.vocabulary()["<|im_end|>"]}, tokenizer.vocab_size)
    for mark in marks:
        schema = {
            "type": "object",
            "properties": {"k": {"const": f"a{mark}b"}, f"n{mark}": {"enum": [1]}},
            "required": ["k", f"n{mark}"],
            "additionalProperties": False,
        }
        tool = ToolDefinition(name="now", parameters=json.dumps(schema), strict=True)
        calls = EnforcedCalls(syntax, [tool], control, many=False, required=True)
        try:
            grammar = compile_calls(calls, known, LIMITS)
        except InvalidRequest as error:
            if "tool format" in error.message:  # the form has no way to write it
                continue
            raise
        tokens, constraint = list[int](), grammar()
        while not constraint.ended and len(tokens) < 400:
            chosen = constraint.forced() or allowed(constraint.mask())[:1]
            constraint.accept(chosen)
            tokens += chosen
        plain = known.tokens_of(f"a{mark}b".encode())
        assert set(control.values()).isdisjoint(plain)
        text = b"".join(map(known.token_bytes, tokens)).decode()
        assert f"a{mark}b" in text or quoted(f"a{mark}b")[1:-1] in text
