"""What prompts bring beside tokens: embeddings, and the log probabilities of their own tokens.

A `Compute` gives the rows of each pass here as soon as it has them, so that only sums and the likeliest
tokens are kept. Rank 0 collects the result of the step.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.rank.sequences import SequenceState
from services.worker.rank_protocol.prompt_parts import PromptPart, PromptScore

NOT_FINITE = "the model computed numbers of the prompt that are not finite; check the files of the model"
_ROWS = 64  # of logits that are reduced at a time


class PromptOutputs:
    """Takes the rows of a step, in the order of positions within a sequence."""

    def __init__(self) -> None:
        self._parts: list[PromptPart] = []

    def take_rows(self, state: SequenceState, first: int, hidden: Tensor, logits: Tensor | None) -> None:
        """Takes rows of one sequence, those that `SequenceState.prompt_rows` names.

        Args:
            first: Position of the first row.
            hidden: After the last norm, fp32 [rows, hidden]; only read during the call.
            logits: fp32 [rows, vocab], of a sequence whose tokens are scored; only read during the call.
        """
        if state.embedding is not None:
            self._pool(state, first, hidden.numpy())
        elif logits is not None:
            for begin in range(0, len(logits), _ROWS):
                self._score(state, first + begin, logits[begin : begin + _ROWS])

    def collect(self) -> list[PromptPart]:
        """Returns what the step has brought, and forgets it."""
        parts, self._parts = self._parts, []
        return parts

    def _pool(self, state: SequenceState, first: int, hidden: NDArray[np.float32]) -> None:
        options = state.embedding
        assert options is not None
        total = hidden.sum(axis=0, dtype=np.float64)
        state.pooled = total if state.pooled is None else state.pooled + total
        if first + len(hidden) < state.prompt_len:
            return
        vector = state.pooled / (state.prompt_len if options.pooling == "mean" else 1)
        state.pooled = None
        if options.dimensions:
            vector = vector[: options.dimensions]
        error = "" if np.isfinite(vector).all() else NOT_FINITE
        length = float(np.sqrt(vector @ vector))
        if options.normalize and length > 0:
            vector = vector / length
        packed = vector.astype("<f4").tobytes()
        self._parts.append(PromptPart(seq_id=state.seq_id, embedding=packed, error=error))

    def _score(self, state: SequenceState, first: int, logits: Tensor) -> None:
        """Scores the tokens that follow the rows."""
        tokens = torch.from_numpy(state.tokens.view[first + 1 : first + 1 + len(logits)].copy())
        # fp32 is exact enough for each exponential, not for their sum over a large vocabulary
        peaks = logits.max(dim=-1, keepdim=True).values
        sums = (logits - peaks).exp_().sum(dim=-1, keepdim=True, dtype=torch.float64).log_()
        totals = peaks.to(torch.float64) + sums
        chosen = (logits.gather(1, tokens[:, None]) - totals)[:, 0].tolist()
        tops: list[list[tuple[int, float]]] = [[] for _ in chosen]
        if count := state.sampling.prompt_logprobs:
            found = logits.topk(count)
            values, ids = (found.values - totals).tolist(), found.indices.tolist()
            tops = [list(zip(*row, strict=True)) for row in zip(ids, values, strict=True)]
        error = "" if bool(torch.isfinite(totals).all()) else NOT_FINITE
        scores = [PromptScore(value, top) for value, top in zip(chosen, tops, strict=True)]
        self._parts.append(PromptPart(seq_id=state.seq_id, first=first + 1, scores=scores, error=error))
