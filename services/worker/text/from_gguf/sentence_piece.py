"""Builds BPE tokenizers from pieces with scores: the `llama` vocabularies of GGUF files.

SentencePiece joins the two neighbours whose union has the best score, again and again, the leftmost first
(https://github.com/google/sentencepiece, `bpe_model.cc`). The library of Hugging Face joins by a list of
pairs. It is made here: every way to cut a piece into two pieces, in the order of the pieces' scores.
"""

from tokenizers import Tokenizer, models

from services.worker.text.from_gguf.byte_level import MAX_MERGES
from services.worker.text.from_gguf.pieces import TEXT_TYPES, piece_decoder, piece_scores, space_marks
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary

MAX_PIECE_CHARS = 512


def piece_bpe_tokenizer(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> Tokenizer:
    """Build the tokenizer of a `llama` vocabulary, without its added tokens.

    Raises:
        BadGguf: The scores do not fit to the vocabulary, or the pieces are beyond the limits.
    """
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    scores = piece_scores(keys, vocabulary)
    scored = {
        token: score
        for token_id, (token, kind, score) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
        )
        if kind in TEXT_TYPES and token_id not in vocabulary.control_ids
    }
    merges = score_merges(scored, MAX_MERGES)
    if merges is None:
        raise keys.refusal(
            f"its pieces can be built in more than {MAX_MERGES} ways, or one has more than {MAX_PIECE_CHARS} "
            "characters; use a model with a smaller vocabulary"
        )
    unknown = vocabulary.text(vocabulary.roles.unknown) or None
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = keys.flag("ggml.add_space_prefix", default=True)
    tokenizer.normalizer = space_marks(prefix)
    tokenizer.decoder = piece_decoder(prefix)
    return tokenizer


def score_merges(scores: dict[str, float], most: int) -> list[tuple[str, str]] | None:
    """Return the pairs of pieces whose union is a piece, the best score first.

    Args:
        scores: The pieces of the vocabulary.

    Returns:
        The pairs, or None if there are more, or if a piece is too long.
    """
    found: list[tuple[str, str]] = []
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):  # a stable sort: by id among equals
        if len(piece) > MAX_PIECE_CHARS or len(found) > most:
            return None
        found += [
            (left, right)
            for at in range(1, len(piece))
            if (left := piece[:at]) in scores and (right := piece[at:]) in scores
        ]
    return found if len(found) <= most else None
