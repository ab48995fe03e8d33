"""What both kinds of SentencePiece vocabularies share: scores of pieces, and U+2581 for spaces."""

from math import isfinite

from gguf import TokenType
from tokenizers import decoders, normalizers

from services.worker.text.detokenizer import SPACE
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary

# a text never becomes a token of another type, unless that is searched for
TEXT_TYPES = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED})


def piece_scores(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> list[float]:
    """Return the score of each token.

    Raises:
        BadGguf: There is not one finite number for each token.
    """
    scores = keys.numbers("ggml.scores", len(vocabulary.tokens))
    if len(scores) != len(vocabulary.tokens) or not all(map(isfinite, scores)):
        raise keys.error(
            "ggml.scores", f"must have a finite number for each of the {len(vocabulary.tokens)} tokens"
        )
    return scores


def space_marks(prefix: bool) -> normalizers.Normalizer:
    """Return the step that writes U+2581 for spaces, and one more before a text if `prefix` is set."""
    replaced = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), replaced]) if prefix else replaced


def piece_decoder(prefix: bool) -> decoders.Decoder:
    """Return the way back from pieces to text."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
