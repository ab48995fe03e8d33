"""Changes the scores of a row before a token is drawn: logit_bias, penalties, and tokens that are left out.

Tokens are counted for penalties as they come. The counts depend on nothing but the tokens, so they are the
same if they are made again, as after a resume. A mask has bit `i % 8` of byte `i // 8` for token `i`; tokens
beyond its end are forbidden.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.sampling.shares import Scores
from services.worker.engine.sampling.top_k_top_p import LARGEST
from services.worker.rank_protocol.engine_sampling import EngineSampling

_NEVER = np.float32(-np.inf)
# for each byte of a mask 0 or -infinity for its eight tokens, [256, 8]
_ADDENDS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.float32(0), _NEVER).astype(np.float32)


def edits_scores(sampling: EngineSampling) -> bool:
    """Whether any of them is in use."""
    return bool(
        sampling.logit_bias
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


class Penalties:
    """The tokens of one sequence whose logits change, and by how much.

    Arrays have an entry for each such token: its id, its bias, its repetition penalty (1 for a token with a
    bias only), and how often it is in the output.

    Attributes:
        counted: How many tokens of the sequence are counted.
        refusals: The sequence's, when counting began; with more of them counted tokens may be gone.
    """

    def __init__(self, state: SequenceState, vocab_size: int) -> None:
        self._sampling = state.sampling
        self._prompt_len = state.prompt_len
        self.counted = 0
        self.refusals = state.refusals
        self._entries: dict[int, int] = {}
        self._ids = np.empty(0, np.int64)
        self._bias, self._factors, self._counts, self._presence = np.empty((4, 0))
        for token_id, bias in state.sampling.logit_bias.items():
            if token_id < vocab_size:
                entry = self._entry(token_id)
                self._bias[entry] = bias

    def apply(self, scores: Scores, state: SequenceState, end: int) -> None:
        """Edits the logits of the token that follows the first `end` tokens, in place.

        Args:
            scores: Raw logits, [vocab].
            end: Never lower than in the call before.

        Raises:
            ValueError: The sequence has fewer tokens, or more of them were counted before.
        """
        self._count(state.tokens.view[self.counted : end])
        if self.counted != end:
            raise ValueError(
                f"sequence {state.seq_id}: penalties of {end} tokens, {self.counted} are counted"
            )
        size = len(self._entries)
        ids = self._ids[:size]
        raw = scores[ids].astype(np.float64)
        values, factors = raw + self._bias[:size], self._factors[:size]
        with np.errstate(over="ignore"):  # by a factor near 0
            values = np.where(values > 0, values / factors, values * factors)
        values -= self._sampling.frequency_penalty * self._counts[:size] + self._presence[:size]
        # the largest number stands for infinity; a token that the model rules out (-inf) stays ruled out
        scores[ids] = np.where(np.isneginf(raw), raw, np.clip(values, -LARGEST, LARGEST))

    def _count(self, tokens: NDArray[np.int64]) -> None:
        output = max(self._prompt_len - self.counted, 0)  # index of the first that is not of the prompt
        self.counted += len(tokens)
        repetition = self._sampling.repetition_penalty
        if repetition != 1:
            for token_id in set(tokens.tolist()):
                entry = self._entry(token_id)
                self._factors[entry] = repetition
        if self._sampling.presence_penalty or self._sampling.frequency_penalty:
            for token_id in tokens[output:].tolist():
                entry = self._entry(token_id)
                self._counts[entry] += 1
                self._presence[entry] = self._sampling.presence_penalty

    def _entry(self, token_id: int) -> int:
        """The entry of a token, added if there is none; may replace the arrays by larger ones."""
        entry = self._entries.setdefault(token_id, len(self._entries))
        if entry == len(self._ids):
            more = max(64, entry)
            self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
            self._bias, self._counts, self._presence = (
                np.concatenate([values, np.zeros(more)])
                for values in (self._bias, self._counts, self._presence)
            )
            self._factors = np.concatenate([self._factors, np.ones(more)])
        self._ids[entry] = token_id
        return entry


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
