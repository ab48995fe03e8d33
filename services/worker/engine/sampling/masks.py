"""Leaves tokens out of a row of logits: those that a grammar forbids, and those that would end it too early.

A mask has bit `i % 8` of byte `i // 8` for token `i`; tokens beyond its end are forbidden.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.sampling.top_k_top_p import Scores

_NEVER = np.float32(-np.inf)


def only_token(mask: bytes) -> int:
    """Returns the token of a mask that allows one token; -1 if it allows another number of them."""
    some = mask.strip(b"\0")
    if len(some) != 1 or some[0] & (some[0] - 1):
        return -1
    return 8 * mask.index(some) + some[0].bit_length() - 1


def forbid_masked(scores: Scores, mask: bytes) -> None:
    """Sets the scores of all tokens that a mask forbids to -infinity, in place."""
    bits = np.unpackbits(
        np.frombuffer(mask, np.uint8), count=min(len(scores), 8 * len(mask)), bitorder="little"
    )
    np.copyto(scores[: len(bits)], _NEVER, where=bits == 0)
    scores[len(bits) :] = _NEVER


def forbid_ends(scores: Scores, end_ids: NDArray[np.int64]) -> None:
    """Sets the scores of the tokens that end a sequence to -infinity, unless nothing else may come."""
    ids = end_ids[end_ids < len(scores)]
    before = scores[ids]
    scores[ids] = _NEVER
    if scores.max() == _NEVER:
        scores[ids] = before
