"""The buffers that the ops of a program read and write.

They hold `MAX_ROWS` tokens; a larger batch goes through in several passes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.cold_zone import PASS_TOKENS
from services.worker.engine.int8 import SCALE_BLOCK
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.structs import TiledRows

MAX_ROWS = PASS_TOKENS


@dataclass(frozen=True, slots=True)
class Activation:
    """The input of a linear.

    Attributes:
        rows: Floats, [MAX_ROWS, width].
        floats: The same in tiles of rows; None for byte weights, which read the following instead.
        codes: The rows quantized, in tiles, padded to whole blocks.
        scales: Of each row and block of codes.
        starts: What the integer sums of each row and block begin with.
    """

    rows: Tensor
    floats: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None
    starts: Tensor | None = None

    @classmethod
    def allocate(cls, features: int, quantized: bool) -> "Activation":
        """Buffers for that many features."""
        width = padded(features)
        rows = buffer(MAX_ROWS, width)
        if not quantized:
            return cls(rows, floats=buffer(MAX_ROWS, width))
        blocks = padded(features, SCALE_BLOCK) // SCALE_BLOCK
        return cls(
            rows,
            codes=buffer(MAX_ROWS, blocks * SCALE_BLOCK, dtype=torch.int8),
            scales=buffer(MAX_ROWS, blocks),
            starts=buffer(MAX_ROWS, blocks, dtype=torch.int32),
        )

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.rows.shape[1]

    @property
    def tiled(self) -> TiledRows:
        """The tiles as the kernels take them."""
        return TiledRows(
            floats=address_of(self.floats),
            codes=address_of(self.codes),
            scales=address_of(self.scales),
            starts=address_of(self.starts),
            stride=self.width if self.codes is None else self.codes.shape[1],
        )


@dataclass(frozen=True, slots=True)
class PartialSums:
    """What the ranks add to the residual stream.

    Attributes:
        address: Of [count][MAX_ROWS, width], the partial sums of all ranks.
        own: Address of this rank's.
        count: How many ranks write here.
        owner: Of the memory.
    """

    address: int
    own: int
    count: int
    owner: object = None

    @classmethod
    def local(cls, sums: Tensor) -> "PartialSums":
        """Those of one rank, in this process's own memory."""
        return cls(sums.data_ptr(), sums.data_ptr(), 1, sums)


@dataclass(frozen=True, slots=True)
class ResidualStream:
    """The residual stream, and the norm of it that the next linear reads.

    Attributes:
        hidden: [MAX_ROWS, width].
        columns: How many of a row's floats count; the others are padding.
        eps: Of the norms.
        normed: RMS norm of `hidden`.
    """

    hidden: Tensor
    columns: int
    eps: float
    normed: Activation

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.hidden.shape[1]


@dataclass(frozen=True, slots=True)
class QueryKeyInputs:
    """What is done to queries and keys before attention.

    Attributes:
        cos: Cosines by position, [positions, head_dim / 2].
        sin: Sines, the same.
        norms: Weights of the norms of queries and keys, [padded head_dim] each; None for models without them.
        eps: Of the norms.
    """

    cos: Tensor
    sin: Tensor
    norms: tuple[Tensor, Tensor] | None
    eps: float


def address_of(tensor: Tensor | None) -> int:
    """Address of a tensor's data; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()
