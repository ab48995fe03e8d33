"""`least_tokens` is a lower bound of a text's tokens; tokenizers without such a bound give 0."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from services.worker.null.model import ByteTokenizer
from services.worker.text.token_bound import least_tokens
from services.worker.text.tokenizer import read_tokenizer
from tests.kits.worker.tokenizers import byte_level, sentence_piece

DEMO = Path(__file__).parents[4] / "models" / "demo" / "tokenizer.json"
TEXTS = st.text(st.sampled_from("the é<|im_start|>\n\t0aé\u0301😀"), max_size=300)


def spaced() -> Tokenizer:
    """A tokenizer whose added token includes the white space beside it."""
    made = byte_level()
    made.add_tokens([AddedToken("<wide>", lstrip=True, rstrip=True)])
    return made


def composing() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.NFKC()
    return made


@pytest.mark.parametrize("make", [byte_level, sentence_piece, spaced, composing])
def test_it_is_a_lower_bound(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    bound = least_tokens(json.loads(tokenizer.to_str()))

    @given(TEXTS | st.just("<wide>" + " " * 500) | st.just(" " * 500 + "<wide>"))
    def check(text: str) -> None:
        assert bound(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)

    check()


def test_it_tells_of_long_texts() -> None:
    assert read_tokenizer(DEMO).least_tokens("word " * 200_000) > 2048
    assert ByteTokenizer().least_tokens("é" * 5) <= len(
        ByteTokenizer().encode("é" * 5, add_special_tokens=False)
    )


def unknown_words() -> Tokenizer:
    return Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))


def without_bytes() -> Tokenizer:
    return Tokenizer(models.BPE(vocab={"a": 0, "?": 1}, merges=[], unk_token="?", fuse_unk=True))


def lower_case() -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Replace(Regex(" +"), " ")
    return made


def dropping() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


@pytest.mark.parametrize("make", [unknown_words, without_bytes, lower_case, dropping])
def test_where_a_token_may_stand_for_any_text_nothing_is_said(make: Callable[[], Tokenizer]) -> None:
    assert least_tokens(json.loads(make().to_str()))("a b" * 10**6) == 0
