"""Chooses the next token of each sequence from its logits.

Order of operations, as in vLLM (`vllm/v1/sample/sampler.py`): logit_bias, repetition penalty (HF: over prompt
and output), frequency and presence penalty (OpenAI's formula, over the output), temperature, min_p, top_k,
top_p, draw. Log probabilities are those of the raw logits. Ties go to the lower token id. Everything is
rebuilt from the tokens, and the draw depends on (seed, choice, position) only, so any rank of any group
makes the same choice for the same logits, whatever else is in the batch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.worker.domain.plan import Alternative, Sampled
from services.worker.engine.sequences import SequenceState
from shared.messages import Sampling

Logits = NDArray[np.float32]
Scores = NDArray[np.float64]


class SamplingError(Exception):
    """Logits that are no numbers: the weights are damaged."""


class Sampler:
    """Samples for a batch; keeps nothing between calls."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._state = self._philox.state

    def sample(self, logits: Logits, states: Sequence[SequenceState], ends: Sequence[int]) -> list[Sampled]:
        """The next token of each row.

        Args:
            logits: [rows, vocab].
            states: The sequence of each row.
            ends: For each row the index that its next token will have in the sequence.

        Raises:
            SamplingError: a row holds NaN or infinity where its maximum is.
        """
        chosen = logits.argmax(axis=1)
        peaks = logits[np.arange(len(chosen)), chosen]
        if not np.isfinite(peaks).all():
            row = int(np.flatnonzero(~np.isfinite(peaks))[0])
            raise SamplingError(
                f"the logits of sequence {states[row].seq_id} are not finite; the weights are damaged"
            )
        edited = [row for row, state in enumerate(states) if not _is_plain(state.sampling)]
        if edited:
            chosen[edited] = self._choose(logits, states, ends, edited)
        return [
            Sampled(seq_id=state.seq_id, token_id=int(token))
            if state.sampling.logprobs < 0
            else _with_logprobs(state, logits[row], int(token))
            for row, (state, token) in enumerate(zip(states, chosen, strict=True))
        ]

    def uniform(self, seed: int, choice: int, position: int) -> float:
        """A number in [0, 1) with 53 random bits: Philox 4x64 (Salmon et al., 2011) as numpy defines it."""
        inner = self._state["state"]
        inner["key"][:] = (seed, choice)
        inner["counter"][:] = (position, 0, 0, 0)
        self._state["buffer_pos"] = 4  # nothing is left over from an earlier draw
        self._philox.state = self._state
        return float((int(self._philox.random_raw()) >> 11) * 2.0**-53)

    def _choose(
        self, logits: Logits, states: Sequence[SequenceState], ends: Sequence[int], rows: list[int]
    ) -> NDArray[np.int64]:
        scores = logits[rows].astype(np.float64)
        for score, row in zip(scores, rows, strict=True):
            _penalise(score, states[row], ends[row])
        chosen = scores.argmax(axis=1)
        drawn = [i for i, row in enumerate(rows) if states[row].sampling.temperature > 0]
        if drawn:
            samplings = [states[rows[i]].sampling for i in drawn]
            uniforms = np.array(
                [
                    self.uniform(states[rows[i]].sampling.seed, states[rows[i]].choice, ends[rows[i]])
                    for i in drawn
                ]
            )
            chosen[drawn] = _draw(_probabilities(scores[drawn], samplings), uniforms)
        return np.asarray(chosen, np.int64)


def _is_plain(sampling: Sampling) -> bool:
    """Whether the likeliest token of the raw logits is the answer."""
    return (
        sampling.temperature == 0
        and not sampling.logit_bias
        and sampling.repetition_penalty == 1
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
    )


def _penalise(score: Scores, state: SequenceState, end: int) -> None:
    """Applies bias and penalties to one row, in place."""
    sampling = state.sampling
    tokens = state.tokens.view[:end]
    for token_id, bias in sampling.logit_bias.items():
        if token_id < len(score):
            score[token_id] += bias
    if sampling.repetition_penalty != 1:
        seen = np.unique(tokens)
        values = score[seen]
        factor = sampling.repetition_penalty
        with np.errstate(over="ignore"):  # by a factor near 0; the largest number will do for infinity
            score[seen] = np.nan_to_num(
                np.where(values > 0, values / factor, values * factor), neginf=-np.inf
            )
    if sampling.presence_penalty or sampling.frequency_penalty:
        output, counts = np.unique(tokens[state.prompt_len :], return_counts=True)
        score[output] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _probabilities(scores: Scores, samplings: Sequence[Sampling]) -> Scores:
    """Weights of the tokens that may be drawn, not normalised; the likeliest token has weight 1."""
    temperature = np.array([[s.temperature] for s in samplings])
    weights = scores - scores.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the likeliest to -infinity
        weights = np.exp(weights / temperature)
    min_p = np.array([[s.min_p] for s in samplings])
    if min_p.any():
        weights[weights < min_p] = 0.0
    limited = [i for i, s in enumerate(samplings) if s.top_k or s.top_p < 1]
    if limited:
        weights[limited] = _limit(weights[limited], [samplings[i] for i in limited])
    return np.asarray(weights, np.float64)


def _limit(weights: Scores, samplings: Sequence[Sampling]) -> Scores:
    """Keeps the top_k likeliest, then of these the fewest whose share reaches top_p."""
    vocab = weights.shape[1]
    order = np.argsort(-weights, axis=1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=1)
    top_k = np.array([[s.top_k or vocab] for s in samplings])
    ranked[np.arange(vocab) >= top_k] = 0.0
    reached = np.cumsum(ranked, axis=1)
    top_p = np.array([[s.top_p] for s in samplings])
    keep = reached - ranked < top_p * reached[:, -1:]
    keep[:, 0] = True
    limited = np.zeros_like(weights)
    np.put_along_axis(limited, order, np.where(keep, ranked, 0.0), axis=1)
    return limited


def _draw(weights: Scores, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Inverts the cumulative distribution, tokens in the order of their ids."""
    cumulative = np.cumsum(weights, axis=1)
    target = uniforms * cumulative[:, -1]
    index = (cumulative <= target[:, None]).sum(axis=1)
    # rounding may carry the target to the very end, where tokens of weight 0 may stand
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
    chosen: NDArray[np.int64] = np.minimum(index, last)
    return chosen


def _with_logprobs(state: SequenceState, logits: Logits, token_id: int) -> Sampled:
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    count = min(state.sampling.logprobs, len(row))
    top: list[Alternative] = []
    if count:
        threshold = np.partition(row, len(row) - count)[len(row) - count]
        candidates = np.flatnonzero(row >= threshold)
        best = candidates[np.argsort(-row[candidates], kind="stable")][:count]
        top = [Alternative(int(i), float(row[i])) for i in best]
    return Sampled(seq_id=state.seq_id, token_id=token_id, logprob=float(row[token_id]), top=top)
