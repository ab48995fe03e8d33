"""Builds byte-level BPE tokenizers: the `gpt2` vocabularies of GGUF files."""

from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.worker.text.from_gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary

MAX_MERGES = 2**20  # about twice the most known


def byte_level_tokenizer(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> Tokenizer:
    """Build the tokenizer, without its added tokens.

    Raises:
        BadGguf: The rule that cuts texts into words is unknown, or the merges do not fit to the vocabulary.
    """
    rule = pre_tokenizer(keys)
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = list(_merges(keys, ids))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rule.keeps_words))
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pre_tokenizer(keys: TokenizerKeys) -> PreTokenizer:
    """Return the rule that the file names.

    Raises:
        BadGguf: It names none, or one that is not known.
    """
    name = keys.text("ggml.pre")
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        what = f"has the value {name[:80]!r}" if name else "is missing"
        raise keys.refusal(
            f"`tokenizer.ggml.pre`, the rule that cuts a text into words, {what}; known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}; convert the model again with one of these"
        )
    return rule


def _merges(keys: TokenizerKeys, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs in the order in which they are merged."""
    merges = keys.texts("ggml.merges", MAX_MERGES)
    if not merges:
        raise keys.refusal("`tokenizer.ggml.merges` is missing or empty; convert the model again")
    for number, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise keys.refusal(
                f"merge {number} of its tokenizer, {merge[:80]!r}, is no pair of tokens that join to a token"
                "; convert the model again"
            )
        yield left, right
