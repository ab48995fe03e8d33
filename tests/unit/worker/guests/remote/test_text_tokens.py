"""Tokens that are made of an answer's text say exactly that text."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, normalizers

from services.worker.guests.remote.tokens.text_tokens import AnswerText, TextTokens
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.null.model import ByteTokenizer
from services.worker.text.tokenizer import LibraryTokenizer, Tokenizer, read_tokenizer
from tests.conftest import DEMO

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "<|im_end|>",
        "<s> </s>",
        "  two  spaces ",
        "\U0001f642\u200d\U0001f642",
        "\ufffd",
        "a\x00b",
        "▁x <0x41>",
    ]
)


@cache
def pieces() -> Tokenizer:
    """A vocabulary of pieces with byte fallback, which puts a space before each text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "a", "b", "▁a", "▁the", "the", "t", "h", "e", "th", "▁t"]
    merges = [("t", "h"), ("th", "e"), ("▁", "t"), ("▁", "a")]
    vocab = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = HfTokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return LibraryTokenizer(tokenizer)


@cache
def text_tokens(name: str) -> TextTokens:
    tokenizers: dict[str, Tokenizer] = {
        "bytes": ByteTokenizer(),
        "byte level": read_tokenizer(DEMO / "tokenizer.json"),
        "pieces": pieces(),
    }
    return TextTokens(tokenizers[name])


@pytest.mark.parametrize("name", ["bytes", "byte level", "pieces"])
@given(texts=st.lists(TEXT, max_size=6), size=st.integers(1, 7))
def test_any_split_says_the_same(name: str, texts: list[str], size: int) -> None:
    tokens, whole = text_tokens(name), "".join(texts)
    answer, ids = AnswerText(tokens), list[int]()
    for at in range(0, len(whole), size):
        ids += answer.feed(whole[at : at + size])
    ids += answer.end()
    assert tokens.bytes_of(ids).decode() == whole


@given(text=TEXT, cuts=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_halves_of_utf16_pairs_are_joined(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le")
    answer, ids, at = AnswerText(text_tokens("bytes")), list[int](), 0
    while at < len(units):
        size = 2 * cuts[at % len(cuts)]
        ids += answer.feed(units[at : at + size].decode("utf-16-le", "surrogatepass"))
        at += size
    ids += answer.end()
    assert bytes(ids).decode() == text


def test_a_half_that_is_left_is_no_character() -> None:
    answer = AnswerText(text_tokens("bytes"))
    assert bytes(answer.feed("a\ud83d")) == b"a"
    assert bytes(answer.end()).decode() == "\ufffd"
    assert answer.end() == ()


def test_no_space_is_put_before_a_piece() -> None:
    tokens = text_tokens("pieces")
    assert tokens.bytes_of(tokens.tokens("the")) == b"the"
    assert tokens.bytes_of(tokens.tokens(" the")) == b" the"


def test_a_vocabulary_without_some_bytes_is_named() -> None:
    model = models.WordLevel(vocab={"a": 0, "<unk>": 1}, unk_token="<unk>")
    tokenizer = HfTokenizer(model)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = TextTokens(LibraryTokenizer(tokenizer))
    with pytest.raises(ServerError, match="no token"):
        tokens.tokens("z")
