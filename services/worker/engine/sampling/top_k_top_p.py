"""Draws one token from a row of scores under temperature, min_p, top_k and top_p, without sorting the row.

The likelier token comes first, of two with the same score the one with the lower id. A token's weight is
exp((score - peak) / temperature) in fp32 (`shares.py`), rounded down to a multiple of 2**-40. Sums of whole
numbers are exact in any order, so a selection here chooses the same token as `sampling/reference.py`, which
sorts everything. Scores include bias and penalties.
"""

import math

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.sampling.draws import BITS
from services.worker.engine.sampling.shares import COLDEST, Scores, share
from services.worker.rank_protocol.engine_sampling import EngineSampling

Weights = NDArray[np.int64]
Ids = NDArray[np.int64]

UNIT = 2**40  # weight of the likeliest token
LARGEST_VOCAB = 2**22  # the weights of so many tokens sum to less than 2**63
LARGEST = float(np.finfo(np.float32).max)
CHUNK = 512  # weights that one partial sum stands for
GROUPS = 64  # scores that one group maximum stands for
SMALL = 1024  # so few are sorted instead of partitioned again
ROUNDS = 64  # partitions after which the rest is sorted, however many it has


class TopKTopPSampler:
    """Draws tokens from rows of one vocabulary; keeps buffers only."""

    def __init__(self, vocab_size: int) -> None:
        require_small(vocab_size)
        self.vocab_size = vocab_size
        self._shares = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.int64)
        self._chunks = np.arange(0, vocab_size, CHUNK)

    def draw(self, scores: Scores, best: int, sampling: EngineSampling, bits: int) -> int:
        """Draws one token.

        Args:
            scores: [vocab]; may hold -infinity, but neither NaN nor +infinity.
            best: The first token with the highest score, which is finite.
            sampling: Its temperature is above 0.
            bits: A draw of 53 bits, from `draws.py`.
        """
        temperature, peak = sampling.temperature, scores[best]
        ids: Ids | None = None
        if sampling.min_p > 0:
            ids = np.flatnonzero(scores >= _score_of(sampling.min_p, float(peak), temperature))
            ids = ids[share(scores[ids], peak, temperature) >= np.float32(sampling.min_p)]
        if 0 < sampling.top_k < (len(scores) if ids is None else len(ids)):
            ids = likeliest(scores, sampling.top_k) if ids is None else ids[_top(scores[ids], sampling.top_k)]
        if ids is None:
            return self._draw_any(scores, best, sampling, bits)
        few = scores[ids]
        weights = _whole(share(few, peak, temperature))
        if sampling.top_p < 1:
            head = _head(few, weights, share_of(int(weights.sum()), sampling.top_p))
            ids, weights = ids[head], weights[head]
        return int(ids[_invert(weights, bits)])

    def _draw_any(self, scores: Scores, best: int, sampling: EngineSampling, bits: int) -> int:
        """Draws from the whole row, from which only top_p, if anything, leaves tokens out."""
        temperature = sampling.temperature
        weights = _whole(share(scores, scores[best], temperature, self._shares), self._weights)
        sums = np.add.reduceat(weights, self._chunks).cumsum()
        total = int(sums[-1])
        if sampling.top_p < 1:
            need = share_of(total, sampling.top_p)
            if need <= weights[best]:
                return best
            # the tokens that weigh no more than this may all be left out
            light = max((total - need) // len(weights), 1) / UNIT
            for power in (0.5, 0.75, 1.0):  # mostly a few tokens suffice; those of the last power always do
                ids = np.flatnonzero(scores >= _score_of(light**power, float(scores[best]), temperature))
                few = weights[ids]
                if few.sum() >= need:
                    break
            head = _head(scores[ids], few, need)
            return int(ids[head[_invert(few[head], bits)]])
        target = bits * total >> BITS
        chunk = int(sums.searchsorted(target, "right"))
        begin = chunk * CHUNK
        before = int(sums[chunk - 1]) if chunk else 0
        return begin + int(weights[begin : begin + CHUNK].cumsum().searchsorted(target - before, "right"))


def require_small(vocab_size: int) -> None:
    """Refuses vocabularies of which the weights may add up to more than a 64-bit number.

    Raises:
        ValueError: It is such a one.
    """
    if vocab_size > LARGEST_VOCAB:
        raise ValueError(f"vocab_size={vocab_size} is over {LARGEST_VOCAB}: lower UNIT in top_k_top_p.py")


def share_of(total: int, top_p: float) -> int:
    """The least whole number that is no less than top_p * total, exactly; at least 1."""
    numerator, denominator = top_p.as_integer_ratio()
    return max(-(-numerator * total // denominator), 1)


def likeliest(scores: Scores, count: int) -> Ids:
    """Ids, ascending, of the `count` likeliest tokens, or of all with a finite score if these are fewer."""
    width = len(scores) // GROUPS
    floor = -LARGEST
    if 4 * count <= width:
        # each of the highest group maxima is a score of its own, so `count` scores reach the lowest of them
        maxima = scores[: GROUPS * width].reshape(GROUPS, width).max(axis=0)
        floor = max(float(np.partition(maxima, width - count)[width - count]), floor)
    ids = np.flatnonzero(scores >= np.float32(floor))
    return ids[_top(scores[ids], count)]


def _top(scores: Scores, count: int) -> Ids:
    if count >= len(scores):
        return np.arange(len(scores))
    return _head(scores, np.ones(len(scores), np.int64), count)


def _whole(shares: Scores, out: Weights | None = None) -> Weights:
    """Weights in units of 1 / UNIT, rounded down; `shares` is not changed."""
    if out is None:
        out = np.empty(len(shares), np.int64)
    np.multiply(shares, np.float32(UNIT), out=out, casting="unsafe")
    return out


def _score_of(weight: float, peak: float, temperature: float) -> np.float32:
    """A score below that of every token of at least this weight (1 is the peak's), by a little at most.

    The margins are far above the rounding of `share` in fp32.
    """
    exponent = math.log(weight) * (1 + 1e-5) - 1e-5
    score = max(peak + max(temperature, COLDEST) * exponent, -LARGEST)
    lowest = np.float32(-LARGEST)
    below: np.float32 = np.nextafter(np.nextafter(np.float32(score), lowest), lowest)
    return below


def _head(scores: Scores, weights: Weights, need: int) -> Ids:
    """Positions, ascending, of the fewest tokens, the likeliest first, whose weights reach `need`.

    Args:
        scores: Finite, in the order of the token ids.
        weights: Of the same tokens.
        need: From 1 to the sum of the weights.
    """
    # Partitions by score, as quickselect does: tokens above `rest` are in the head, those below are not, and
    # the head's part of `rest` must weigh `need`.
    rest, values, masses = np.arange(len(scores)), scores, weights
    for _ in range(ROUNDS):
        if len(rest) <= SMALL:
            break
        low, high = float(values.min()), float(values.max())
        middle = np.float32((low + high) / 2)
        if middle <= low:  # all equal, or neighbours in fp32
            break
        upper = values >= middle
        mass = int(masses[upper].sum())
        if mass < need:
            need -= mass
            upper = ~upper
        rest, values, masses = rest[upper], values[upper], masses[upper]
    order = np.argsort(-values, kind="stable")
    last = order[masses[order].cumsum().searchsorted(need, "left")]
    lowest, position = values[last], rest[last]
    kept = scores > lowest
    kept[: position + 1] |= scores[: position + 1] == lowest
    return np.flatnonzero(kept)


def _invert(weights: Weights, bits: int) -> int:
    """Inverts the cumulative distribution, tokens in the order of their ids."""
    sums = weights.cumsum()
    return int(sums.searchsorted(bits * int(sums[-1]) >> BITS, "right"))
