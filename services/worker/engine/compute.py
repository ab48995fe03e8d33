"""The contract of a rank's computing: slices in, logits out.

Two kinds of implementation: the plain one in torch operations (`plain.py`; any device, the oracle of the
other) and the native one in compiled kernels (`native/`; CPUs). A `Runner` uses either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from services.worker.domain.plan import Slice
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.sequences import SequenceState


@dataclass(slots=True)
class Times:
    """Seconds spent since the start; 0 where an implementation cannot tell parts apart."""

    linears_s: float = 0.0
    attention_s: float = 0.0


class Compute(Protocol):
    """This rank's share of a model, with its KV cache.

    num_blocks: of the cache. collectives: connects the ranks, which all call `forward` with the same slices.
    """

    num_blocks: int
    collectives: Collectives
    times: Times

    def forward(self, slices: Sequence[Slice], states: Sequence[SequenceState]) -> Tensor | None:
        """Computes the slices, whose states include them already; their keys and values go into the cache.

        Returns on rank 0 the logits of the sampling slices in their order, fp32 [rows, vocab], valid until
        the next call; None on the others, and where nothing is sampled. Raises `CollectiveError`.
        """
        ...
