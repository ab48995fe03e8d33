"""The oracle of `sampler.py`: one sequence, with full sorts, and all tokens counted again.

Written from the definitions, to be checked by reading. Both weigh tokens in whole numbers, so the sampler
must choose the same token; log probabilities may differ by the rounding of fp32.
"""

from collections.abc import Collection
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.sampling.shares import share
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Alternative

Logits = NDArray[np.float32]


def choose(
    logits: Logits,
    sampling: EngineSampling,
    tokens: list[int],
    prompt_len: int,
    choice: int = 0,
    *,
    allowed: Collection[int] | None = None,
    end_ids: Collection[int] = (),
) -> int:
    """The token that follows `tokens`, the first `prompt_len` of which are the prompt.

    Args:
        logits: [vocab]; neither NaN nor +infinity, and not all -infinity for the tokens that are allowed.
        tokens: Tokens of prompt and output.
        prompt_len: How many of them are the prompt.
        choice: Index of the completion.
        allowed: The tokens that may come; None: all.
        end_ids: Tokens that end the sequence.
    """
    possible = {int(i) for i in np.flatnonzero(~np.isneginf(logits)) if allowed is None or i in allowed}
    if len(tokens) - prompt_len < sampling.min_tokens:
        possible = possible.difference(end_ids) or possible
    left = [i in possible for i in range(len(logits))]
    scores = edited(np.where(left, logits, np.float32(-np.inf)), sampling, tokens, prompt_len)
    order = np.argsort(-scores, kind="stable")  # the likeliest first, of equals the lower id
    if sampling.temperature == 0:
        return int(order[0])
    shares = share(scores, scores[order[0]], sampling.temperature)
    weights = np.floor(shares.astype(np.float64) * 2.0**40).astype(np.int64)
    order = order[shares[order] >= np.float32(sampling.min_p)]
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        sums = np.cumsum(weights[order])
        below = int((sums < _ceil(Fraction(sampling.top_p) * int(sums[-1]))).sum())
        order = order[: below + 1]
    kept = np.sort(order)
    sums = np.cumsum(weights[kept])
    philox = np.random.Philox(key=[sampling.seed, choice], counter=[len(tokens), 0, 0, 0])
    target = Fraction(int(philox.random_raw()) >> 11, 2**53) * int(sums[-1])
    return int(kept[int((sums < _floor(target) + 1).sum())])


def edited(logits: Logits, sampling: EngineSampling, tokens: list[int], prompt_len: int) -> Logits:
    """The logits after bias and penalties, fp32 [vocab]."""
    scores = logits.astype(np.float64)
    for token_id, bias in sampling.logit_bias.items():
        if token_id < len(scores):
            scores[token_id] += bias
    for token_id in set(tokens):
        value, factor = float(scores[token_id]), sampling.repetition_penalty
        scores[token_id] = value / factor if value > 0 else value * factor
    for token_id in set(tokens[prompt_len:]):
        count = tokens[prompt_len:].count(token_id)
        scores[token_id] -= sampling.frequency_penalty * count + sampling.presence_penalty
    largest = float(np.finfo(np.float32).max)
    return np.where(np.isneginf(logits), logits, np.clip(scores, -largest, largest).astype(np.float32))


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """Natural, by the raw logits, [vocab]."""
    values = logits.astype(np.float64) - float(logits.max())
    return np.asarray(values - np.log(np.exp(values).sum()), np.float64)


def alternatives(logits: Logits, count: int) -> list[Alternative]:
    """The `count` likeliest tokens, the likeliest first, without those that the model rules out (-inf)."""
    values = log_probabilities(logits)
    order = np.argsort(-logits, kind="stable")[:count]
    return [Alternative(int(i), float(values[i])) for i in order if values[i] > -np.inf]


def _floor(value: Fraction) -> int:
    return value.numerator // value.denominator


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
