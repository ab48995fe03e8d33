"""The port through which the sampler draws tokens from rows of scores, and its plain implementation.

`native_draws.py` draws the same tokens with compiled code.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from services.worker.engine.sampling.shares import Scores
from services.worker.engine.sampling.top_k_top_p import TopKTopPSampler
from services.worker.rank_protocol.engine_sampling import EngineSampling


class DrawJob(NamedTuple):
    """One row to draw from.

    Attributes:
        scores: fp32 [vocab], contiguous; may hold -infinity, but neither NaN nor +infinity.
        best: The first token with the highest score, which is finite.
        sampling: Its temperature is above 0.
        bits: A draw of 53 bits, from `draws.py`.
    """

    scores: Scores
    best: int
    sampling: EngineSampling
    bits: int


class RowDraws(Protocol):
    """Draws tokens; the token of a row does not depend on the other rows."""

    def draw_rows(self, jobs: Sequence[DrawJob]) -> list[int]:
        """Returns the token of each row; all rows have the same length, at most `LARGEST_VOCAB`."""


class PlainDraws:
    """Draws row by row with numpy."""

    def __init__(self) -> None:
        self._sampler = TopKTopPSampler(0)

    def draw_rows(self, jobs: Sequence[DrawJob]) -> list[int]:
        """See `RowDraws`."""
        if jobs and len(jobs[0].scores) != self._sampler.vocab_size:
            self._sampler = TopKTopPSampler(len(jobs[0].scores))
        return [self._sampler.draw(*job) for job in jobs]
