"""The buffers that the ops of a program read and write.

They hold `MAX_ROWS` tokens; a larger batch goes through in several passes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from services.worker.engine.cold_zone import PASS_TOKENS
from services.worker.engine.int8 import SCALE_BLOCK
from services.worker.engine.native.cache import HeadShape
from services.worker.engine.native.layers.packed_norm import PackedNorm
from services.worker.engine.native.packed_weights import LANES, buffer, padded
from services.worker.engine.native.structs.attention import SegmentParts
from services.worker.engine.native.structs.rows import TiledRows
from services.worker.rank_protocol.page_policy import PagePolicy

MAX_ROWS = PASS_TOKENS
_BEHIND = 64  # values behind the last one that kernels may read, without use
SEGMENT, MAX_SPLIT_SPANS = 1024, 4  # as in `src/attention/segments.h`


class InputKinds(NamedTuple):
    """How the weights of a model are stored, and so in which forms linears read their inputs."""

    floats: bool = False
    pairs: bool = False
    int8: bool = False
    codes: bool = False


FLOATS = InputKinds(floats=True)


@dataclass(frozen=True, slots=True)
class Activation:
    """The input of a linear.

    Attributes:
        rows: Floats, [MAX_ROWS, width].
        floats: The same in tiles of rows; None: no weights are floats.
        pairs: The rows in bf16, in tiles, as `src/weights/bf16_pairs.h` says; None: no weights are pairs.
        codes: The rows as bytes, in tiles, padded to whole blocks; None: all weights are floats.
        scales: Of each row and block of bytes.
        starts: What the integer sums of each row and block begin with.
        sums: Of the bytes of each half of a block; None: no weights are codes.
    """

    rows: Tensor
    floats: Tensor | None = None
    pairs: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None
    starts: Tensor | None = None
    sums: Tensor | None = None

    @classmethod
    def allocate(cls, features: int, kinds: InputKinds, count: int = MAX_ROWS) -> "Activation":
        """Buffers for that many features of `count` rows."""
        width, blocks = padded(features), padded(features, SCALE_BLOCK) // SCALE_BLOCK
        as_bytes = kinds.int8 or kinds.codes
        return cls(
            buffer(count, width),
            floats=buffer(count, width) if kinds.floats else None,
            pairs=buffer(count, width) if kinds.pairs else None,
            codes=buffer(count, blocks * SCALE_BLOCK, dtype=torch.int8) if as_bytes else None,
            scales=buffer(count * blocks + _BEHIND) if as_bytes else None,
            starts=buffer(count * blocks, dtype=torch.int32) if as_bytes else None,
            sums=buffer(2 * count * blocks + _BEHIND, dtype=torch.int32) if kinds.codes else None,
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
            pairs=address_of(self.pairs),
            codes=address_of(self.codes),
            scales=address_of(self.scales),
            starts=address_of(self.starts),
            sums=address_of(self.sums),
            stride=self.width,
            byte_stride=0 if self.codes is None else self.codes.shape[1],
        )


@dataclass(frozen=True, slots=True)
class PartialSums:
    """What the ranks add up: parts of the residual stream, or sums of squares.

    Attributes:
        address: Of [count][MAX_ROWS, width], the partial sums of all ranks.
        own: Address of this rank's.
        count: How many ranks write here.
        rows: This rank's, [MAX_ROWS, width], if the collectives add them up; else None.
    """

    address: int
    own: int
    count: int
    owner: object = None
    rows: Tensor | None = None

    @classmethod
    def local(cls, sums: Tensor) -> "PartialSums":
        """Those of one rank, in this process's own memory."""
        return cls(sums.data_ptr(), sums.data_ptr(), 1, sums, sums)


@dataclass(frozen=True, slots=True)
class ResidualStream:
    """The residual stream.

    Attributes:
        hidden: [MAX_ROWS, width].
        columns: How many of a row's floats count; the others are padding.
    """

    hidden: Tensor
    columns: int

    @property
    def width(self) -> int:
        """Floats of a row."""
        return self.hidden.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What is added to the residual stream.

    Attributes:
        sums: Partial sums of the ranks.
        bias: [width], added to the sum.
        norm: Of the sum.
        scale: Of the sum, or of its norm.
        positions: [positions, width], added by position.
        assign: The sum replaces the stream.
    """

    sums: PartialSums
    bias: Tensor | None = None
    norm: PackedNorm | None = None
    scale: float = 1.0
    positions: Tensor | None = None
    assign: bool = False


@dataclass(frozen=True, slots=True)
class SegmentRoom:
    """Where threads leave their parts of a token's attention; see `src/attention/segments.h`.

    Attributes:
        parts: [split spans, heads, segments, 16 + width].
        finished: [split spans, kv heads], zeros.
        segments: How many a context has at most.
    """

    parts: Tensor
    finished: Tensor
    segments: int

    @classmethod
    def allocate(cls, heads: HeadShape, positions: int) -> "SegmentRoom":
        """Room for contexts of that many positions; memory is taken when it is first used."""
        segments = -(-positions // SEGMENT)
        parts = buffer(MAX_SPLIT_SPANS, heads.heads, segments, LANES + heads.width)
        return cls(parts, buffer(MAX_SPLIT_SPANS, heads.kv_heads, dtype=torch.int32), segments)

    @property
    def pointers(self) -> SegmentParts:
        """As the kernels take it."""
        return SegmentParts(address_of(self.parts), address_of(self.finished), self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """What is done to queries and keys before attention, and to their scores.

    Attributes:
        cos: Cosines by position, [positions, half of the rotated dimensions]; None: nothing is rotated.
        sin: Sines, the same.
        query_norm: Of each head.
        key_norm: Of each head.
        clip: Queries, keys and values are clipped to it, in both directions; 0: they are not.
        window: How many last positions a token sees; 0: all.
        softcap: Of the scores; 0: none.
        slopes: ALiBi's, [heads].
        sinks: [heads].
        segments: For long contexts; None: one thread computes a token's KV head.
        pages: Which pages a token reads; None: all.
    """

    cos: Tensor | None = None
    sin: Tensor | None = None
    query_norm: PackedNorm | None = None
    key_norm: PackedNorm | None = None
    clip: float = 0.0
    window: int = 0
    scale: float
    softcap: float = 0.0
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    segments: SegmentRoom | None = None
    pages: PagePolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRows:
    """Some columns of rows, which are a rank's part of a larger dimension.

    Attributes:
        tensor: [MAX_ROWS, width].
        first: The first column.
        size: Of the whole dimension.
        counts: Whether the part is in the ranks' sums; not if another rank has the same one.
    """

    tensor: Tensor
    first: int
    count: int
    size: int
    counts: bool = True


def address_of(tensor: Tensor | None) -> int:
    """Address of a tensor's data; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()
