"""The end of a text is taken back as far as a longer token may have covered it, and can be spelled again."""

import pytest

from services.worker.domain.constraints.forced_text import ForcedText, RepeatedText
from services.worker.domain.generation.token_constraint import ConstraintFailed, TokenRefused
from services.worker.text.answers.call_layout import AnswerPiece
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.token_speller import TokenSpeller
from services.worker.text.tokenizer import LibraryTokenizer
from tests.kits.grammars.walks import allowed
from tests.kits.worker.tokenizers import byte_level, sentence_piece

TOKENIZER = LibraryTokenizer(byte_level())
SPELLER = TokenSpeller(TOKENIZER, TOKENIZER.vocab_size, frozenset())
IDS = TOKENIZER.vocabulary()


def texts(mask: bytes) -> set[bytes]:
    return {TOKENIZER.token_bytes(token_id) for token_id in allowed(mask)}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a the", "a the"),  # nothing is longer than ` the`
        ("a th", "a"),  # ` `, `th`: ` the` may have been cut
        ("a t", "a"),
        ("x t", "x"),
        ("a\n", "a\n"),
        ("th", ""),
        ("<|im_en", "<|im_en"),  # a control token is no text
    ],
)
def test_the_most_tokens_are_taken_back(text: str, kept: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    taken = SPELLER.take_back(ids)
    assert TOKENIZER.decode(taken.kept) == kept
    assert taken.kept + taken.dropped == ids


def test_a_mask_has_what_can_spell_the_text() -> None:
    assert texts(SPELLER.mask(b" th")) == {b" ", b" the"}
    assert texts(SPELLER.mask(b"th")) == {b"t", b"th", b"the"}
    assert texts(SPELLER.mask("é".encode()[:1])) == {b"\xc3", "é".encode()}


def test_a_beginning_whose_rest_has_no_token_is_left_out() -> None:
    few = {IDS[one] for one in ("t", "th", "the")}
    others = frozenset(range(TOKENIZER.vocab_size)) - few
    assert texts(TokenSpeller(TOKENIZER, TOKENIZER.vocab_size, others).mask(b"the")) == {b"the"}


def test_the_forced_text_is_the_beginning_and_nothing_else() -> None:
    forced = ForcedText(SPELLER, b" th", None, frozenset([IDS["Ġthe"]]))
    assert texts(forced.mask() or b"") == {b" "}  # the other one ends the answer
    forced.accept([IDS["Ġ"], IDS["th"]])
    assert forced.is_over
    assert forced.mask() is None
    with pytest.raises(TokenRefused):
        ForcedText(SPELLER, b" th", None, frozenset()).accept([IDS["a"]])
    nothing = ForcedText(SPELLER, b"the", None, frozenset(IDS[one] for one in ("t", "th", "the")))
    with pytest.raises(ConstraintFailed):
        nothing.mask()


def test_only_tokens_that_repeat_the_text_are_counted() -> None:
    end = IDS["<|im_end|>"]
    exact = RepeatedText(SPELLER, b" th", 2)
    assert [exact.count_token(IDS[one]) for one in ("Ġ", "th", "a")] == [1, 1, 0]
    at_once = RepeatedText(SPELLER, b" th", 2)
    assert [at_once.count_token(one) for one in (IDS["Ġthe"], IDS["a"], end)] == [0, 0, 0]
    fewer = RepeatedText(SPELLER, b"th", 2)
    assert [fewer.count_token(one) for one in (IDS["th"], end)] == [1, 0]  # the end is output
    more = RepeatedText(SPELLER, b"th", 1)
    assert [more.count_token(IDS[one]) for one in ("t", "h")] == [1, 0]


@pytest.mark.parametrize("library", [byte_level(), sentence_piece()])
def test_the_beginning_of_an_answer_is_tokenized_without_a_space_before(library: object) -> None:
    tokenizer = LibraryTokenizer(library)  # type: ignore[arg-type]
    guard = ControlTokenGuard(tokenizer, ChatTemplate("{{ messages }}", {}))
    for text in ("the abc", "abc", " abc", "\n\nabc the"):
        ids = guard.encode_answer([AnswerPiece(text)])
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_only_markup_has_control_tokens() -> None:
    guard = ControlTokenGuard(TOKENIZER, ChatTemplate("{{ messages }}", {}))
    start = IDS["<|im_start|>"]
    assert guard.encode_answer([AnswerPiece("<|im_start|>", is_markup=True), AnswerPiece("the")])[0] == start
    ids = guard.encode_answer([AnswerPiece("the "), AnswerPiece("<|im_start|>")])
    assert start not in ids
    assert TOKENIZER.decode(ids) == "the <|im_start|>"
