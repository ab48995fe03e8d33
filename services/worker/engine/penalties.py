"""What logit_bias and the penalties do to the logits of one sequence.

Counts the tokens as they come instead of all of them at every step. The counts are no more than a summary of
the tokens: made anew from them, as after a resume, they are the same.
"""

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.nucleus import LARGEST, Scores
from services.worker.engine.sequences import SequenceState
from shared.messages import Sampling


def edits_scores(sampling: Sampling) -> bool:
    """Whether there is anything to do."""
    return bool(
        sampling.logit_bias
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


class Penalties:
    """The tokens of one sequence whose logits are to change, and how.

    In arrays with a place for each such token: its id, its bias, the factor of its repetition (1 for a token
    that has a bias only), and how often it is in the output. `counted`: how many tokens that says.
    """

    def __init__(self, state: SequenceState, vocab_size: int) -> None:
        self._sampling = state.sampling
        self._prompt_len = state.prompt_len
        self.counted = 0
        self._places: dict[int, int] = {}
        self._ids = np.empty(0, np.int64)
        self._bias, self._factors, self._counts, self._presence = np.empty((4, 0))
        biases = {i: bias for i, bias in state.sampling.logit_bias.items() if i < vocab_size}
        if biases:
            places = self._find(biases)
            self._bias[places] = list(biases.values())

    def apply(self, scores: Scores, state: SequenceState, end: int) -> None:
        """Edits the logits of the token that follows the first `end` tokens, in place.

        scores: [vocab], raw logits. `end` never falls from one call to the next.

        Raises:
            ValueError: the sequence has fewer tokens, or more of them were counted before.
        """
        self._count(state.tokens.view[self.counted : end])
        if self.counted != end:
            raise ValueError(
                f"sequence {state.seq_id}: penalties of {end} tokens, {self.counted} are counted"
            )
        size = len(self._places)
        ids = self._ids[:size]
        raw = scores[ids].astype(np.float64)
        values, factors = raw + self._bias[:size], self._factors[:size]
        with np.errstate(over="ignore"):  # by a factor near 0
            values = np.where(values > 0, values / factors, values * factors)
        values -= self._sampling.frequency_penalty * self._counts[:size] + self._presence[:size]
        # the largest number will do for infinity; a token that the model itself rules out stays so
        scores[ids] = np.where(np.isneginf(raw), raw, np.clip(values, -LARGEST, LARGEST))

    def _count(self, tokens: NDArray[np.int64]) -> None:
        start = self._prompt_len - self.counted
        self.counted += len(tokens)
        repetition = self._sampling.repetition_penalty
        if repetition != 1:
            places = self._find(set(tokens.tolist()))
            self._factors[places] = repetition
        if self._sampling.presence_penalty or self._sampling.frequency_penalty:
            counts = Counter(tokens[max(start, 0) :].tolist())
            places = self._find(counts)
            self._counts[places] += list(counts.values())
            self._presence[places] = self._sampling.presence_penalty

    def _find(self, token_ids: Collection[int]) -> list[int]:
        """The places of the tokens, made where there are none."""
        places = self._places
        found = [places.setdefault(token_id, len(places)) for token_id in token_ids]
        if len(places) > len(self._ids):
            self._grow(max(64, 2 * len(places)))
        for token_id, place in zip(token_ids, found, strict=True):
            self._ids[place] = token_id
        return found

    def _grow(self, size: int) -> None:
        more = size - len(self._ids)
        self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
        self._bias, self._counts, self._presence = (
            np.concatenate([values, np.zeros(more)]) for values in (self._bias, self._counts, self._presence)
        )
        self._factors = np.concatenate([self._factors, np.ones(more)])
