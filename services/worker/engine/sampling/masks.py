"""Leaves tokens out of a row of logits: those that a grammar forbids, and those that would end it too early.

A mask has bit `i % 8` of byte `i // 8` for token `i`; tokens beyond its end are forbidden.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.sampling.shares import Scores

_NEVER = np.float32(-np.inf)
# for each byte of a mask 0 or -infinity for its eight tokens, [256, 8]
_ADDENDS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.float32(0), _NEVER).astype(np.float32)


def only_token(mask: bytes) -> int:
    """Returns the token of a mask that allows one token; -1 if it allows another number of them."""
    some = mask.strip(b"\0")
    if len(some) != 1 or some[0] & (some[0] - 1):
        return -1
    return 8 * mask.index(some) + some[0].bit_length() - 1


def allows(mask: bytes, token_id: int) -> bool:
    """Returns whether a mask allows a token."""
    return token_id < 8 * len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)


class TokenMasker:
    """Applies masks to rows of one vocabulary; keeps a buffer only.

    What is added to the scores of eight tokens is looked up by their byte of the mask, which takes a tenth of
    the time of unpacking the bits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._addends = np.empty((-(-vocab_size // 8), 8), np.float32)

    def mask_scores(self, logits: Scores, mask: bytes, out: Scores) -> None:
        """Writes the logits to `out`, with -infinity for all tokens that the mask forbids."""
        some = np.frombuffer(mask, np.uint8)[: len(self._addends)]
        addends = self._addends[: len(some)]
        np.take(_ADDENDS, some, axis=0, out=addends, mode="clip")
        size = min(len(logits), 8 * len(some))
        np.add(logits[:size], addends.reshape(-1)[:size], out=out[:size])
        out[size:] = _NEVER


def forbid_ends(scores: Scores, end_ids: NDArray[np.int64]) -> None:
    """Sets the scores of the tokens that end a sequence to -infinity, unless nothing else may come."""
    ids = end_ids[end_ids < len(scores)]
    before = scores[ids]
    scores[ids] = _NEVER
    if scores.max() == _NEVER:
        scores[ids] = before
