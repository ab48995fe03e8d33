"""Regular expressions, choices and grammars that are wrong, too large or too costly are refused in time."""

import re
import time

import pytest

from services.worker.domain.generation.token_constraint import ConstraintFailed, is_too_complex
from services.worker.leader.token_output import error_of
from services.worker.rank_protocol.plan import Sampled
from services.worker.text.grammars.repetition_bound import repetitions_of
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.tokenizer import LibraryTokenizer
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest, StructuredOutput
from tests.kits.grammars.walks import Kind, compiled, vocabulary
from tests.kits.worker.tokenizers import byte_level, sentence_piece

REFUSED: list[tuple[Kind, str, str]] = [
    ("regex", "(", "unclosed"),
    ("regex", "a(?=b)", "look-around"),
    ("regex", r"(a)\1", "backreferences"),
    ("regex", "(a{1000}){1000}", "multiply"),
    ("regex", "a" * 5000, "5000 characters"),
    ("regex", "", "definition"),
    ("regex", "(" + "x" * 2000 + "){10}", "write out"),
    ("regex", "(a?){3000}a{3000}", "too many expressions"),
    ("grammar", 'start: "' + "x" * 5000 + '"', "4096 characters"),
    ("regex", "[^\\x00-\\u{10FFFF}]", "not served"),
    ("grammar", "start: x", "unknown name"),
    ("grammar", 'start: "a', "not served"),
    ("grammar", "start: start", "satisfies"),
    ("grammar", "root ::= missing", "missing"),
    ("grammar", 'start: %json {"uniqueItems": true}', "%json"),
    ("grammar", '%llguidance {"allow_invalid_utf8": true}\nstart: /a/', "%llguidance"),
    ("grammar", 'start: "a" <|im_end|>', "token"),
    ("grammar", 'start: "a" <[1]>', "token"),
    ("grammar", 'start: x{1000}\nx: y{1000}\ny: "a"', "multiply"),
    ("grammar", 'start: x~1000\nx: y~1..1000\ny: "a"', "multiply"),
    ("grammar", "start: A\nA: " + " & ".join(f"/.*p{index}.*/" for index in range(40)), "times `&`"),
    ("choice", "", "at least one"),
]


@pytest.mark.parametrize(("kind", "definition", "reason"), REFUSED)
def test_what_is_wrong_is_refused(kind: Kind, definition: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest, match=reason) as refused:
        compiled(kind, definition)
    assert time.process_time() - began < 2.0
    assert (refused.value.data["param"], refused.value.data["keyword"]) == ("structured", kind)


def test_choices_have_limits_of_number_and_size() -> None:
    with pytest.raises(InvalidRequest, match="5000 choices"):
        compiled("choice", "", *map(str, range(5000)))
    with pytest.raises(InvalidRequest, match="bytes"):
        compiled("choice", "", "x" * 200_000)
    with pytest.raises(InvalidRequest, match="no use"):
        compiled("regex", "a", "b")


@pytest.mark.parametrize(
    ("pattern", "amount"),
    [
        ("abc", (1, 3)),
        ("a{3}", (3, 3)),
        ("(a{3}b{2}){4}", (12, 20)),
        (r"\{5}a{2,7}[0-9]{50}", (50, 5)),
        ("[{9}]{2,}x*", (2, 1)),
        ("(x{2}|(y{5}){5})z{3}", (25, 30)),
    ],
)
def test_nested_repetitions_are_multiplied(pattern: str, amount: tuple[int, int]) -> None:
    assert repetitions_of(pattern) == amount


def test_every_kind_of_tokenizer_gives_a_vocabulary() -> None:
    for made, text in ((byte_level(), b'{"the":"\xc3\xa9 <x>"}'), (sentence_piece(), b"a cab b")):
        tokenizer = LibraryTokenizer(made)
        size = tokenizer.vocab_size
        for vocab_size in (size - 1, size, size + 40):
            known = TokenVocabulary(tokenizer, {size - 3, size - 2, size - 1}, vocab_size)
            assert b"".join(map(known.token_bytes, known.tokens_of(text))) == text
            assert len(known.end_mask) == (vocab_size + 7) // 8
    with pytest.raises(InvalidRequest, match="end-of-sequence"):
        TokenVocabulary(LibraryTokenizer(byte_level()), set(), 100)


@pytest.mark.parametrize("definition", ["(", "a(?=b)", r"\p{Foo}"])
def test_the_fault_of_a_regex_is_told_without_the_grammar_around_it(definition: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compiled("regex", definition)
    assert refused.value.message.startswith("`structured` (regex) is not served: ")  # gateways rename it
    assert not re.search(r"start:|invalid regex|parse error|\^|\|", refused.value.message)


@pytest.mark.parametrize(
    "definition", ['root ::= root root | "a" | ""', 'start: "a" start | start start | ""']
)
def test_an_ambiguous_grammar_is_told_in_plain_words(definition: str) -> None:
    """The parser's own text speaks of rows and items, which no caller knows."""
    constraint = compiled("grammar", definition, on="null")()

    def follow() -> None:
        for _ in range(2000):
            constraint.mask()
            constraint.accept(vocabulary("null").tokens_of(b"a"))

    with pytest.raises(ConstraintFailed) as failed:
        follow()
    assert is_too_complex(failed.value)
    sampled = Sampled(seq_id=1, token_id=0, error="its grammar failed", cause="demand")
    request = GenerateRequest(
        request_id="r",
        model="m",
        prompt="x",
        structured=StructuredOutput(kind="grammar", definition=definition),
    )
    error = error_of(request, sampled, failed.value)
    assert (error.code, error.data["param"]) == ("invalid_request", "structured")
    assert error.message == (
        "`structured` leaves no next token: the grammar is too ambiguous to be followed here: let fewer "
        "alternatives begin alike"
    )
