"""Chooses the next token of each sequence from its logits.

Order of operations, as in vLLM (`vllm/v1/sample/sampler.py`): mask of the grammar, min_tokens, logit_bias,
repetition penalty (HF: over prompt and output), frequency and presence penalty (OpenAI's formula, over the
output), temperature, min_p, top_k, top_p, draw. A masked token is never chosen. Before `min_tokens` of output
those that end the sequence are masked, unless nothing else may come. Log probabilities are those of the raw
logits, before the mask. Ties go to the lower token id. All state is
rebuilt from the tokens, and the draw depends on (seed, choice, position) only, so any rank of any group makes
the same choice for the same logits, whatever else is in the batch. The oracle is `sampling/reference.py`.

A new parameter is a field of `Sampling` (`shared/messages`), and is applied here and in the oracle: in
`score_edits.py` if it edits logits, there or in `top_k_top_p.py` (and `native/src/sampling/`) if it leaves
tokens out.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.sampling.draws import Draws
from services.worker.engine.sampling.row_draws import DrawJob, PlainDraws, RowDraws
from services.worker.engine.sampling.score_edits import (
    Penalties,
    TokenMasker,
    allows,
    edits_scores,
    forbid_ends,
    only_token,
)
from services.worker.engine.sampling.shares import Scores, share
from services.worker.engine.sampling.top_k_top_p import likeliest
from services.worker.rank_protocol.plan import Alternative, Sampled

Logits = Scores

NOT_FINITE = (
    "the model computed logits that are no finite numbers; "
    "send the request again, and check the files of the model if it fails again"
)
NOTHING = -1  # in place of a token
NOTHING_ALLOWED = "neither the grammar nor the model leaves a token that may come; change the grammar"


def takes_likeliest(state: SequenceState, end: int) -> bool:
    """Whether a row's next token, of that index, is the likeliest one if no grammar masks it."""
    sampling = state.sampling
    return (
        sampling.temperature == 0
        and sampling.logprobs < 0
        and end - state.prompt_len >= sampling.min_tokens
        and not edits_scores(sampling)
    )


def likeliest_sampled(states: Sequence[SequenceState], tokens: Sequence[int]) -> list[Sampled]:
    """What `Sampler.sample` returns for rows that take the likeliest tokens; see `Compute.likeliest`."""
    return [
        Sampled(seq_id=state.seq_id, token_id=max(token, 0), error=NOT_FINITE if token == NOTHING else "")
        for state, token in zip(states, tokens, strict=True)
    ]


class Sampler:
    """Samples for a batch; keeps buffers between calls, and counts that are rebuilt from the tokens.

    Args:
        row_draws: Draws from the edited scores; None: with numpy.
    """

    def __init__(self, row_draws: RowDraws | None = None) -> None:
        self._draws = Draws()
        self._row_draws = row_draws or PlainDraws()
        self._buffer: Scores = np.empty(0, np.float32)
        self._edited: list[Scores] = []  # a buffer for each row of the batch whose logits are edited
        self._num_edited = 0
        self._masker = TokenMasker(0)
        self._penalties: WeakKeyDictionary[SequenceState, Penalties] = WeakKeyDictionary()

    def sample(
        self,
        logits: Logits,
        states: Sequence[SequenceState],
        ends: Sequence[int],
        masks: Sequence[bytes] | None = None,
    ) -> list[Sampled]:
        """The next token of each row, or an error if the row's maximum is NaN or infinity.

        Args:
            logits: fp32 [rows, vocab]; not changed.
            states: The sequence of each row; with draft tokens it has several rows, one after another.
            ends: For each row the index that its next token will have in the sequence.
            masks: For each row the tokens that may come, see `score_edits.py`; an empty one allows all.
        """
        if logits.shape[1] != len(self._buffer):
            self._buffer = np.empty(logits.shape[1], np.float32)
            self._edited = []
            self._masker = TokenMasker(logits.shape[1])
            self._penalties.clear()
        best = logits.argmax(axis=1)  # the first NaN, if there is one
        finite = np.isfinite(logits[np.arange(len(best)), best]).tolist()
        self._num_edited = 0
        rows = zip(logits, best.tolist(), finite, states, ends, masks or [b""] * len(states), strict=True)
        chosen = [self._choose(*row[:2], *row[3:]) if row[2] else NOTHING for row in rows]
        drawn = iter(self._row_draws.draw_rows([one for one in chosen if isinstance(one, DrawJob)]))
        tokens = [next(drawn) if isinstance(one, DrawJob) else one for one in chosen]
        found = zip(states, logits, best.tolist(), tokens, finite, strict=True)
        return [self._sampled(*one) for one in found]

    def _sampled(self, state: SequenceState, logits: Scores, best: int, token: int, finite: bool) -> Sampled:
        if token == NOTHING:
            if finite:
                return Sampled(seq_id=state.seq_id, token_id=0, error=NOTHING_ALLOWED, cause="demand")
            return Sampled(seq_id=state.seq_id, token_id=0, error=NOT_FINITE)
        if state.sampling.logprobs < 0:
            return Sampled(seq_id=state.seq_id, token_id=token)
        return self._with_logprobs(state, logits, best, token)

    def _choose(
        self, logits: Scores, best: int, state: SequenceState, end: int, mask: bytes
    ) -> int | DrawJob:
        """The next token; `NOTHING` if none may come, or what it is to be drawn from."""
        sampling, scores, token = state.sampling, logits, best
        if mask and 0 <= (only := only_token(mask)) < len(logits):
            return only
        early = end - state.prompt_len < sampling.min_tokens
        edited = edits_scores(sampling)
        if not early and not edited and sampling.temperature == 0 and (not mask or allows(mask, best)):
            return best
        if mask or early or edited:
            scores = self._next_edited()
            if mask:
                self._masker.mask_scores(logits, mask, scores)
            else:
                np.copyto(scores, logits)
            if early:
                forbid_ends(scores, state.end_ids)
            if edited:
                self._penalties_of(state, end).apply(scores, state, end)
            token = int(scores.argmax())
            if np.isneginf(scores[token]):
                return NOTHING
        if sampling.temperature > 0:
            return DrawJob(scores, token, sampling, self._draws.draw_bits(sampling.seed, state.choice, end))
        self._num_edited = max(0, self._num_edited - (scores is not logits))  # its buffer is free again
        return token

    def _next_edited(self) -> Scores:
        if self._num_edited == len(self._edited):
            self._edited.append(np.empty(len(self._buffer), np.float32))
        self._num_edited += 1
        return self._edited[self._num_edited - 1]

    def _penalties_of(self, state: SequenceState, end: int) -> Penalties:
        penalties = self._penalties.get(state)
        if penalties is None or penalties.counted > end or penalties.refusals != state.refusals:
            penalties = self._penalties[state] = Penalties(state, len(self._buffer))
        return penalties

    def _with_logprobs(self, state: SequenceState, logits: Scores, best: int, token: int) -> Sampled:
        # fp32 shares are exact to 1e-7 each; their sum is too only in float64
        peak = float(logits[best])
        total = peak + float(np.log(share(logits, logits[best], 1.0, self._buffer).sum(dtype=np.float64)))
        top: list[Alternative] = []
        if state.sampling.logprobs:
            ids = likeliest(logits, state.sampling.logprobs)
            for i in ids[np.argsort(-logits[ids], kind="stable")].tolist():
                top.append(Alternative(i, float(logits[i]) - total))
        return Sampled(seq_id=state.seq_id, token_id=token, logprob=float(logits[token]) - total, top=top)
