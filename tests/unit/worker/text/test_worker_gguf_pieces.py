"""SentencePiece vocabularies from GGUF files: the greedy rule, byte fallback, spaces, and streamed text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.model_files.gguf_model import load_gguf_model
from services.worker.text.from_gguf.sentence_piece import score_merges
from services.worker.text.tokenizer import Tokenizer
from shared.errors import InvalidRequest
from tests.kits.worker.gguf_vocabularies import BYTE_PIECES, piece_keys, write_gguf

FIRST_PIECE = 3 + 256
LETTERS = "abé\u2581"


def greedy(pieces: dict[str, float], text: str) -> list[str]:
    """The rule as SentencePiece states it, without an index: join the best pair, of equals the leftmost."""
    parts = list(text)
    while True:
        joined = [parts[at] + parts[at + 1] for at in range(len(parts) - 1)]
        found = [(-pieces[piece], at) for at, piece in enumerate(joined) if piece in pieces]
        if not found:
            return parts
        _, at = min(found)
        parts[at : at + 2] = [joined[at]]


def slow_ids(pieces: dict[str, float], text: str, *, prefix: bool) -> list[int]:
    """Ids by the slow rule; what is no piece becomes bytes."""
    ids = {piece: FIRST_PIECE + number for number, piece in enumerate(pieces)}
    marked = (("\u2581" + text) if prefix and text else text).replace(" ", "\u2581")
    found: list[int] = []
    for part in greedy(pieces, marked):
        found += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return found


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, float]:
    """Pieces as training makes them: each is the union of two better ones."""
    pieces = dict.fromkeys(LETTERS, 0.0)
    for rank in range(draw(st.integers(0, 12))):
        both = draw(st.sampled_from(sorted(pieces))) + draw(st.sampled_from(sorted(pieces)))
        if both not in pieces and len(both) <= 8:
            pieces[both] = -1.0 - rank
    # letters of a trained vocabulary come last, with the worst scores
    return {piece: score or -100.0 - at for at, (piece, score) in enumerate(pieces.items())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


@given(vocabularies(), st.lists(st.text(LETTERS + " xñ\n", max_size=24), max_size=8), st.booleans())
@settings(deadline=None)
def test_ids_are_those_of_the_greedy_rule(
    folder: Path, pieces: dict[str, float], texts: list[str], prefix: bool
) -> None:
    keys = piece_keys(pieces) | {"ggml.add_space_prefix": prefix}
    tokenizer = load_gguf_model(write_gguf(folder / "x.gguf", keys)).tokenizer
    for text in texts:
        assert tokenizer.encode(text, add_special_tokens=False) == slow_ids(pieces, text, prefix=prefix)


PIECES = {"\u2581": -9.0, "t": -10.0, "h": -11.0, "e": -12.0, "th": -1.0, "the": -2.0, "\u2581the": -3.0}


@pytest.fixture(scope="module")
def by_pieces(folder: Path) -> Tokenizer:
    return load_gguf_model(write_gguf(folder / "p.gguf", piece_keys(PIECES))).tokenizer


def ids_of(*pieces: str) -> list[int]:
    names = ["<unk>", "<s>", "</s>", *BYTE_PIECES, *PIECES]
    return [names.index(piece) for piece in pieces]


def test_spaces_bytes_and_special_tokens(by_pieces: Tokenizer) -> None:
    def plain(text: str) -> list[int]:
        return by_pieces.encode(text, add_special_tokens=False)

    assert plain("the the") == ids_of("\u2581the", "\u2581the")
    assert plain(" the") == ids_of("\u2581", "\u2581the")
    assert plain("") == []
    assert plain("the\n") == ids_of("\u2581the", "<0x0A>")
    assert plain("the</s>the") == ids_of("\u2581the", "</s>", "\u2581the")
    assert plain("<0x0A>") == ids_of("\u2581", *(f"<0x{byte:02X}>" for byte in b"<0x0A>"))
    assert by_pieces.encode("the", add_special_tokens=True) == ids_of("<s>", "\u2581the")
    assert by_pieces.least_tokens("the" * 100) > 0


def test_text_never_becomes_a_control_token_by_joining(folder: Path) -> None:
    pieces = {"<": -1.0, "/": -2.0, "s": -3.0, ">": -4.0, "</": -5.0, "</s": -6.0}
    tokenizer = load_gguf_model(
        write_gguf(folder / "c.gguf", piece_keys(pieces) | {"ggml.add_space_prefix": False})
    ).tokenizer
    cut = [
        *tokenizer.encode("</s", add_special_tokens=False),
        *tokenizer.encode(">", add_special_tokens=False),
    ]
    assert cut == [FIRST_PIECE + 5, FIRST_PIECE + 3]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


@given(st.text("the é日😀\n", max_size=30))
def test_streamed_text_is_the_whole_text_and_never_half_a_character(by_pieces: Tokenizer, text: str) -> None:
    parts = streamed(by_pieces, by_pieces.encode(text, add_special_tokens=False))
    assert "".join(parts) == (
        " " + text if text else ""
    )  # the space before a text is part of its first piece
    assert not any("\ufffd" in part for part in parts)


@given(st.lists(st.integers(0, FIRST_PIECE + len(PIECES) - 1), max_size=20))
def test_any_tokens_give_the_text_of_their_bytes(by_pieces: Tokenizer, ids: list[int]) -> None:
    names = ["", "", "", *BYTE_PIECES, *(piece.replace("\u2581", " ") for piece in PIECES)]
    whole = b"".join(
        bytes((each - 3,)) if each in range(3, FIRST_PIECE) else names[each].encode() for each in ids
    )
    assert "".join(streamed(by_pieces, ids)) == whole.decode(errors="replace")


def test_a_character_over_several_bytes_comes_with_the_last(by_pieces: Tokenizer) -> None:
    ids = ids_of("\u2581the", *(f"<0x{byte:02X}>" for byte in "😀".encode()), "\u2581the")
    assert streamed(by_pieces, ids) == [" the", "", "", "", "😀", " the", ""]
    assert streamed(by_pieces, ids[:3]) == [" the", "", "", "\ufffd"]


def test_the_list_of_merges_is_bounded() -> None:
    assert score_merges({"a": 0.0, "aa": -1.0, "aaa": -2.0}, 3) == [("a", "a"), ("a", "aa"), ("aa", "a")]
    assert score_merges({"a": 0.0, "aa": -1.0, "aaa": -2.0}, 2) is None
    assert score_merges({"a" * 600: 0.0}, 2) is None


def unigram(folder: Path, **keys: object) -> Tokenizer:
    pieces = {"\u2581": -3.0, "a": -4.0, "b": -4.5, "ab": -6.0, "\u2581ab": -5.0, "abab": -20.0}
    return load_gguf_model(write_gguf(folder / "u.gguf", piece_keys(pieces, "t5") | keys)).tokenizer


def test_a_unigram_model_takes_the_pieces_with_the_best_sum(folder: Path) -> None:
    tokenizer = unigram(folder, **{"ggml.add_space_prefix": True, "ggml.add_eos_token": False})
    names = ["\u2581", "a", "b", "ab", "\u2581ab", "abab"]

    def pieces(text: str) -> list[str]:
        return [
            names[each - FIRST_PIECE] if each >= FIRST_PIECE else BYTE_PIECES[each - 3]
            for each in tokenizer.encode(text, add_special_tokens=True)
        ]

    assert pieces("abab") == ["\u2581ab", "ab"]
    assert pieces("ab  ab") == ["\u2581ab", "\u2581", "\u2581ab"]
    assert pieces("aé") == ["\u2581", "a", "<0xC3>", "<0xA9>"]
    assert "".join(streamed(tokenizer, tokenizer.encode("ab é", add_special_tokens=False))) == " ab é"


def test_a_unigram_model_that_joins_spaces(folder: Path) -> None:
    tokenizer = unigram(folder, **{"ggml.remove_extra_whitespaces": True})
    ids = tokenizer.encode("  ab   ab ", add_special_tokens=True)
    assert ids == [FIRST_PIECE + 4, FIRST_PIECE + 4, 2]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ggml.scores": [0.0]}, "ggml.scores` must have a finite number for each of the"),
        ({"ggml.scores": [float("nan")] * (FIRST_PIECE + len(PIECES))}, "a finite number"),
        ({"ggml.scores": ["x"]}, "must be a list of numbers"),
        ({"ggml.model": "t5", "ggml.precompiled_charsmap": [1, 2, 3]}, "rules of normalization"),
    ],
)
def test_what_contradicts_itself_is_refused(folder: Path, changes: dict[str, object], complaint: str) -> None:
    path = write_gguf(folder / "bad.gguf", piece_keys(PIECES) | changes)
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        load_gguf_model(path)
    assert str(path) in str(caught.value)
