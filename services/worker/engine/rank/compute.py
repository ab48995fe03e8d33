"""The contract of a rank's forward pass: scheduled chunks in, logits out.

There are two implementations: `plain/` in torch operators, for any device and the oracle of the other; and
`native/` in compiled kernels, for CPUs. A `Runner` uses either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.rank.op_spans import OpName, OpSpans
from services.worker.engine.rank.prompt_outputs import PromptOutputs
from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.rank.shared_pages import Progress
from services.worker.rank_protocol.plan import ScheduledChunk
from services.worker.rank_protocol.sliding_pool import PoolSizes


class CacheBlocks(Protocol):
    """The blocks of a rank's KV cache as bytes, head by head.

    The bytes of a block and a KV head are the same for every split of the model and every way to compute:
    layer by layer the keys as [head_dim][16 tokens], then the values as [16 tokens][head_dim], in the type
    that the KV format names; of a layer whose cold blocks are fp8 the scale of the keys (fp32), the keys, the
    scale of the values, the values. With latent attention there is one head, which every rank has: layer by
    layer the vectors as [16 tokens][rank + rope_dim]. Another thread than that of `forward` may call
    `copy_in`, for blocks that no step reads or writes at the same time.

    Attributes:
        heads: Which of the model's KV heads this rank has, in the order of its cache.
        writes: Those of them that no lower rank has; only these are stored.
        head_bytes: Size of one head of one block.
    """

    heads: range
    writes: range
    head_bytes: int

    def copy_out(self, block: int, out: NDArray[np.uint8], sliding: int = -1) -> None:
        """Copies the heads `writes` of a block to `out`, [len(writes), >= head_bytes], row by row.

        Rows may be longer than head_bytes and lie apart; only their first head_bytes are written.

        Args:
            out: Gets the bytes.
            sliding: The block of the layers with a sliding window, where these have a pool of their own.
        """
        ...

    def copy_in(self, block: int, first: int, rows: NDArray[np.uint8], sliding: int = -1) -> None:
        """Copies heads that follow each other into a block.

        Args:
            first: The first of the heads, counted in the whole model.
            rows: [heads, head_bytes], each row contiguous.
            sliding: As for `copy_out`; -1 leaves the layers out that have a pool of their own.
        """
        ...


@dataclass(slots=True)
class ComputeTimes:
    """Seconds spent since the start; 0 where an implementation does not measure parts."""

    linears_s: float = 0.0
    attention_s: float = 0.0


class PreparedAdapter(Protocol):
    """An adapter in the layout that a `Compute` reads; only the one that made it takes it."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        ...


# chunks and states as for `Compute.forward`
FindLikeliest = Callable[[Sequence[ScheduledChunk], Sequence[SequenceState]], NDArray[np.int64] | None]


class Compute(Protocol):
    """This rank's share of a model, with its KV cache.

    Attributes:
        blocks: Its contents, for the store.
        collectives: Connects the ranks, which all call `forward` with the same chunks.
        times: Spent so far.
        progress: Counts a beat for each layer or operation; may be replaced between steps.
        spans: Takes when each op was computed; None: nothing does. It may be replaced between steps.
        op_names: The ops, by their indices in `spans`.
        prompts: On rank 0 it takes the rows that prompts want; the caller collects them after each call.
        vacated_bytes: Memory of a block, and of a sliding block, that `vacate` gives back; 0: none.
        adapts: Whether it computes with adapters; if not, no sequence has one.
        likeliest: As `forward`, but returns the likeliest token of each row, of equal ones the lowest, and -1
            where the largest logit is no finite number. None: logits are on the CPU at no cost.
    """

    sizes: PoolSizes
    blocks: CacheBlocks
    collectives: Collectives
    times: ComputeTimes
    progress: Progress
    prompts: PromptOutputs
    vacated_bytes: tuple[int, int]
    adapts: bool
    likeliest: FindLikeliest | None
    spans: OpSpans | None
    op_names: list[OpName]

    def vacate(self, ranges: Sequence[tuple[int, int]], sliding_ranges: Sequence[tuple[int, int]]) -> None:
        """Gives the system the memory of blocks without content, as far as `vacated_bytes` says.

        Args:
            ranges: (first, end) of blocks.
            sliding_ranges: The same of the layers with a sliding window.
        """
        ...

    def prepare_adapter(self, weights: AdapterWeights) -> PreparedAdapter:
        """Copies an adapter to where and how it is computed with; any thread may call it, beside steps."""
        ...

    def set_adapter(self, slot: int, prepared: PreparedAdapter | None) -> None:
        """Puts an adapter into a slot, or empties it; between steps, in the thread of `forward`."""
        ...

    def forward(self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """Computes the chunks, whose states include them already, and caches their keys and values.

        Returns:
            On rank 0 the logits of the sampling chunks (`SequenceState.samples`) in their order, fp32 [rows,
            vocab], valid until the next call. None on other ranks, and if nothing is sampled.

        Raises:
            CollectiveError: Another rank is gone.
            PlanError: The slot of a sequence (`SequenceState.adapter`) is empty.
        """
        ...
