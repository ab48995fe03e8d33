"""Builds unigram tokenizers: the `t5` vocabularies of GGUF files.

A text is cut into the pieces whose scores have the largest sum (https://arxiv.org/abs/1804.10959).
"""

import numpy as np
from gguf import TokenType
from tokenizers import Regex, Tokenizer, models, normalizers

from services.worker.text.from_gguf.pieces import TEXT_TYPES, piece_decoder, piece_scores, space_marks
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary

MAX_MAP_BYTES = 2**22  # of the rules of normalization; those of T5 have 237,539
_NEVER = 1000.0  # so far below all others is the score of a token that no text may become

_UNIT_BYTES = 4
_BLOCK = 256  # a unit has an entry for each next byte


def unigram_tokenizer(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> Tokenizer:
    """Build the tokenizer, without its added tokens.

    Raises:
        BadGguf: The scores do not fit to the vocabulary, there is no unknown token, or the rules of
            normalization cannot be read.
    """
    unknown = vocabulary.roles.unknown
    if unknown is None:
        raise keys.refusal("`tokenizer.ggml.unknown_token_id` is missing; convert the model again")
    scores = piece_scores(keys, vocabulary)
    typed = list(zip(vocabulary.tokens, vocabulary.types, scores, strict=True))
    never = min((score for _, kind, score in typed if kind in TEXT_TYPES), default=0.0) - _NEVER
    pieces = [
        (token, score if kind in TEXT_TYPES and token_id not in vocabulary.control_ids else never)
        for token_id, (token, kind, score) in enumerate(typed)
    ]
    has_bytes = TokenType.BYTE in vocabulary.types
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=has_bytes))
    one_space = keys.flag("ggml.remove_extra_whitespaces", default=False)
    prefix = one_space or keys.flag("ggml.add_space_prefix", default=False)
    steps = _character_map(keys)
    if one_space:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*steps, space_marks(prefix)])
    tokenizer.decoder = piece_decoder(prefix)
    return tokenizer


def _character_map(keys: TokenizerKeys) -> list[normalizers.Normalizer]:
    """Return the rules that replace characters, compiled by SentencePiece; most models have them."""
    key = "ggml.precompiled_charsmap"
    values = keys.integers(key, MAX_MAP_BYTES)
    if not values:
        return []
    data = bytes(value & 0xFF for value in values)  # written as signed or unsigned bytes
    if not check_character_map(data):
        raise keys.refusal(
            f"`tokenizer.{key}`, its rules of normalization, cannot be read; convert the model again"
        )
    return [normalizers.Precompiled(data)]


def check_character_map(data: bytes) -> bool:
    """Checks a SentencePiece model's compiled rules of normalization, which the library follows unchecked.

    They are the length of a double array in 4 bytes, the array (units of 32 bits, as `darts-clone` defines
    them), and then the replacements, each ended by a null byte. A unit that points outside would end the
    process.

    Returns:
        True if every unit of the array points into the array or to the beginning of a character.
    """
    size = int.from_bytes(data[:_UNIT_BYTES], "little")
    if size == 0 or size % (_UNIT_BYTES * _BLOCK) or _UNIT_BYTES + size >= len(data):
        return False
    units = np.frombuffer(data, "<u4", size // _UNIT_BYTES, _UNIT_BYTES)
    replacements = data[_UNIT_BYTES + size :]
    try:
        replacements.decode()
    except UnicodeDecodeError:
        return False
    if replacements[-1]:
        return False
    inner = np.flatnonzero(units >> 31 == 0)  # the others stand for a replacement
    offsets = (units[inner] >> 10) << ((units[inner] & 0x200) >> 6)
    targets = inner ^ offsets
    if (targets | (_BLOCK - 1)).max(initial=0) >= len(units):
        return False
    positions = units[targets[(units[inner] >> 8) & 1 == 1]] & 0x7FFFFFFF
    if positions.max(initial=0) >= len(replacements):
        return False
    begins = np.frombuffer(replacements, np.uint8)[positions] & 0xC0 != 0x80
    return bool(begins.all())
