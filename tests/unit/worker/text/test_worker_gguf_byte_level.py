# ruff: noqa: RUF001 (characters that look like others are meant)
"""Byte-level tokenizers from GGUF files give the ids of the tokenizers that the models are published with."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from services.worker.model_files.gguf_model import load_gguf_model
from services.worker.text.from_gguf.pre_tokenizers import PRE_TOKENIZERS
from services.worker.text.tokenizer import Tokenizer as OurTokenizer
from shared.errors import InvalidRequest
from tests.kits.worker.gguf_vocabularies import byte_level_keys, write_gguf
from tests.kits.worker.tokenizer_texts import tokenizer_texts

TEXTS = tokenizer_texts(180)
# what decides where the rules cut: letters of both cases, marks, digits, spaces, punctuation
ALPHABET = "aBſéÉe\u0301字かहिاَ12٣½²'sStT \n\r\t\u00a0\u3000.,!$<|_/-😀。"


def cohere() -> Tokenizer:
    from transformers import CohereTokenizer  # noqa: PLC0415 (slow to import)

    tokenizer: Tokenizer = CohereTokenizer().backend_tokenizer
    return tokenizer


def qwen2() -> Tokenizer:
    from transformers import Qwen2Tokenizer  # noqa: PLC0415 (slow to import)

    tokenizer: Tokenizer = Qwen2Tokenizer().backend_tokenizer
    return tokenizer


def neox() -> Tokenizer:
    from transformers import GPTNeoXTokenizer  # noqa: PLC0415 (slow to import)

    tokenizer: Tokenizer = GPTNeoXTokenizer().backend_tokenizer
    return tokenizer


def made(*steps: pre.PreTokenizer) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre.Sequence(list(steps))
        return tokenizer

    return make


WORDS = pre.ByteLevel(add_prefix_space=False)
BYTES = pre.ByteLevel(add_prefix_space=False, use_regex=False)
# of Meta's tokenizer.py and OpenAI's tiktoken (openai_public.py), written as they publish them
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": made(WORDS),
    "smollm": made(pre.Digits(individual_digits=True), WORDS),
    "llama-bpe": made(pre.Split(Regex(LLAMA3), "isolated"), BYTES),
    "gpt-4o": made(pre.Split(Regex(O200K), "removed", invert=True), BYTES),
    "command-r": cohere,
    "qwen2": qwen2,
    "mpt": neox,
}


def trained(tokenizer: Tokenizer) -> Tokenizer:
    """Give a published tokenizer a small vocabulary."""
    vocabulary = Tokenizer(models.BPE())
    vocabulary.normalizer, vocabulary.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    vocabulary.train_from_iterator(TEXTS * 2, trainer)
    vocabulary.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return vocabulary


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_are_those_of_the_published_tokenizer(tmp_path: Path, name: str) -> None:
    published = trained(PUBLISHED[name]())
    ours = load_gguf_model(write_gguf(tmp_path / "x.gguf", byte_level_keys(published, name))).tokenizer

    def check(text: str) -> None:
        assert (
            ours.encode(text, add_special_tokens=False)
            == published.encode(text, add_special_tokens=False).ids
        )

    for text in TEXTS:
        check(text)
    given(st.text(ALPHABET, max_size=30))(check)()


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_rule_loses_text(tmp_path: Path, name: str) -> None:
    tokenizer = load_gguf_model(write_gguf(tmp_path / "x.gguf", byte_level_keys(pre=name))).tokenizer
    for text in TEXTS[::3]:
        wanted = normalizers.NFC().normalize_str(text) if PRE_TOKENIZERS[name].composes else text
        assert decoded(tokenizer, tokenizer.encode(wanted, add_special_tokens=False)) == plain(wanted)


def decoded(tokenizer: OurTokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join(map(detokenizer.feed, ids)) + detokenizer.flush()


def plain(text: str) -> str:
    """Leave out what is special."""
    return text.replace("<|im_start|>", "").replace("<|im_end|>", "")


def words(name: str, text: str) -> list[str]:
    found = [text]
    for pattern in PRE_TOKENIZERS[name].patterns:
        cut = pre.Split(Regex(pattern), "isolated")
        found = [word for each in found for word, _ in cut.pre_tokenize_str(each)]
    return found


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("default", "it's 12345", ["it", "'", "s", " ", "123", "45"]),
        ("gpt-2", "it's  12345é!", ["it", "'s", " ", " 12345", "é", "!"]),
        ("smollm", "it's 123", ["it", "'s", " ", "1", "2", "3"]),
        ("falcon", "a->b  12345", ["a", "->", "b", " ", " ", "123", "45"]),
        ("llama-bpe", "it'S 12345\n\n x", ["it", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "x=12\n", ["x", "=", "1", "2", "\n"]),
        ("qwen35", "e\u0301x.\n", ["e\u0301x", ".\n"]),
        ("seed-coder", "x.\n", ["x", ".", "\n"]),
        ("bailingmoe", "x\n\n", ["x", "\n\n"]),
        ("deepseek-llm", "a ->1 ქ字\nÄ𐐀", ["a", " ->", "1", " ", "ქ字", "\n", "Ä𐐀"]),
        ("deepseek-coder", "a ->12 字\n", ["a", " -", ">", "1", "2", " ", "字", "\n"]),
        ("deepseek-v3", "a_b ->1234 字か", ["a", "_b", " ->", "123", "4", " ", "字か"]),
        ("tekken", "éÉaé हिन्दी 12", ["é", "Éaé", " हिन्दी", " ", "1", "2"]),
        ("gpt-4o", "aB'll 1234", ["a", "B'll", " ", "123", "4"]),
        ("bloom", "ab, c।d", ["ab", ",", " c", "।", "d"]),
        ("viking", "ab12", ["ab", "1", "2"]),
    ],
)
def test_where_the_rules_cut(name: str, text: str, wanted: list[str]) -> None:
    assert words(name, text) == wanted


@pytest.mark.parametrize(
    "text", [" " * 60_000 + "1", "\t" * 60_000 + "\x04", "A" * 60_000 + "1", "'" * 60_000]
)
def test_no_rule_takes_quadratic_time(text: str) -> None:
    began = time.process_time()
    for name in {rule.patterns: name for name, rule in PRE_TOKENIZERS.items()}.values():
        words(name, text)
    assert time.process_time() - began < 8  # one rule of quadratic time takes 11 s


def test_only_rules_that_say_so_compose_characters(tmp_path: Path) -> None:
    for name, composes in (("gpt-2", False), ("qwen2", True)):
        tokenizer = load_gguf_model(
            write_gguf(tmp_path / f"{name}.gguf", byte_level_keys(pre=name))
        ).tokenizer
        assert (decoded(tokenizer, tokenizer.encode("e\u0301", add_special_tokens=False)) == "é") is composes


def test_words_that_are_tokens_are_kept_where_the_rule_says_so(tmp_path: Path) -> None:
    keys = byte_level_keys(pre="llama-bpe") | {"ggml.merges": ["t h"], "ggml.add_bos_token": False}
    for name, ids in (("llama-bpe", 1), ("dbrx", 2)):
        model = load_gguf_model(write_gguf(tmp_path / f"{name}.gguf", keys | {"ggml.pre": name}))
        assert len(model.tokenizer.encode("the", add_special_tokens=True)) == ids


@pytest.mark.parametrize("name", ["", "jumbo-2"])
def test_an_unknown_rule_is_refused_with_those_that_are_known(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_keys(pre=name))
    with pytest.raises(InvalidRequest, match=r"x\.gguf: `tokenizer\.ggml\.pre`.*smollm") as caught:
        load_gguf_model(path)
    assert (repr(name) if name else "missing") in str(caught.value)
