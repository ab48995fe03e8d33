"""The ops of a program as the kernels read them: a struct for each kind, field by field as in `src/ops.h`."""

import ctypes
from bisect import bisect_right
from collections.abc import Collection, Sequence
from ctypes import c_int32, c_int64
from enum import IntEnum
from typing import ClassVar

from services.worker.engine.native.structs import ADDRESS
from services.worker.engine.native.structs.attention import AttentionRows, Rotary
from services.worker.engine.native.structs.cache import AttentionLayer
from services.worker.engine.native.structs.rows import CutNorm, LinearOutput, Residual, TiledRows
from services.worker.engine.native.structs.weights import CodeForm
from services.worker.engine.rank.op_spans import OpName

ROWS = "rows"  # norms, sums, embeddings


class OpKind(IntEnum):
    """What an op does; see `src/ops.h`."""

    EMBED = 0
    RESIDUAL = 1
    LINEAR = 2
    ROTATE = 3
    ATTENTION = 4
    TILE = 5
    RANK_BARRIER = 6
    COMPRESS = 7
    SQUARE_SUM = 8
    CUT_NORM = 9
    ROUTE = 10
    SORT_ROWS = 11
    TILE_EXPERTS = 12
    EXPERT_LINEAR = 13
    MIX_EXPERTS = 14
    GATHER = 15
    SHRINK = 16


class OpHeader(ctypes.Structure):
    """The first field of every op."""

    _fields_ = [("kind", c_int32)]


class Op(ctypes.Structure):
    """Base of the ops; each is described in `src/ops.h`."""

    KIND: ClassVar[OpKind]

    def __init__(self, **fields: object) -> None:
        super().__init__(header=OpHeader(self.KIND), **fields)


class EmbedOp(Op):
    """Rows of the embedding table."""

    KIND = OpKind.EMBED
    _fields_ = [
        ("header", OpHeader),
        ("type", c_int32),
        ("table", ADDRESS),
        ("columns", c_int64),
        ("first_id", c_int64),
        ("num_ids", c_int64),
        ("out", ADDRESS),
        ("width", c_int64),
        ("form", CodeForm),
    ]


class ResidualOp(Op):
    """Residual sum and norm."""

    KIND = OpKind.RESIDUAL
    _fields_ = [("header", OpHeader), ("sampled", c_int32), ("residual", Residual)]


class LinearOp(Op):
    """Matrix product."""

    KIND = OpKind.LINEAR
    _fields_ = [
        ("header", OpHeader),
        ("sampled", c_int32),
        ("type", c_int32),
        ("input", TiledRows),
        ("weights", ADDRESS),
        ("inputs", c_int64),
        ("panels", c_int64),
        ("output", LinearOutput),
        ("form", CodeForm),
        ("adapters", ADDRESS),
        ("site", c_int64),
    ]


class ShrinkOp(Op):
    """Product of a linear's input with what adapters have for it; see `src/adapters/shrink_op.h`."""

    KIND = OpKind.SHRINK
    _fields_ = [
        ("header", OpHeader),
        ("sampled", c_int32),
        ("overlaps", c_int32),
        ("x", ADDRESS),
        ("stride", c_int64),
        ("inputs", c_int64),
        ("site", c_int64),
        ("table", ADDRESS),
    ]


class RotateOp(Op):
    """Norm and rotation of queries and keys, and storing of keys and values."""

    KIND = OpKind.ROTATE
    _fields_ = [
        ("header", OpHeader),
        ("half", c_int32),
        ("recent_window", c_int32),
        ("layer", AttentionLayer),
        ("rotary", Rotary),
        ("qkv", ADDRESS),
        ("stride", c_int64),
    ]


class CompressOp(Op):
    """Compression of blocks that are full."""

    KIND = OpKind.COMPRESS
    _fields_ = [
        ("header", OpHeader),
        ("half", c_int32),
        ("layer", AttentionLayer),
        ("cold", ADDRESS),
    ]


class AttentionOp(Op):
    """Grouped-query attention."""

    KIND = OpKind.ATTENTION
    _fields_ = [
        ("header", OpHeader),
        ("half", c_int32),
        ("layer", AttentionLayer),
        ("cold", ADDRESS),
        ("rows", AttentionRows),
    ]


class TileOp(Op):
    """Copying of rows into the tiles that a linear reads."""

    KIND = OpKind.TILE
    _fields_ = [("header", OpHeader), ("rows", ADDRESS), ("width", c_int64), ("tiled", TiledRows)]


class GatherOp(Op):
    """Copying of rows with their columns in another order."""

    KIND = OpKind.GATHER
    _fields_ = [
        ("header", OpHeader),
        ("source", ADDRESS),
        ("stride", c_int64),
        ("order", ADDRESS),
        ("rows", ADDRESS),
        ("width", c_int64),
        ("tiled", TiledRows),
    ]


class SquareSumOp(Op):
    """Sums of squares of this rank's part of a norm that is cut over the ranks."""

    KIND = OpKind.SQUARE_SUM
    _fields_ = [("header", OpHeader), ("norm", CutNorm)]


class CutNormOp(Op):
    """That norm, when the sums of all ranks are there."""

    KIND = OpKind.CUT_NORM
    _fields_ = [("header", OpHeader), ("norm", CutNorm)]


class RankBarrierOp(Op):
    """Waits until all ranks have written their partial sums."""

    KIND = OpKind.RANK_BARRIER
    _fields_ = [("header", OpHeader)]


# as `time_of` in `src/program.cpp`; all others are operations on rows
TIME_OF = {
    OpKind.LINEAR: "linears",
    OpKind.SHRINK: "linears",
    OpKind.EXPERT_LINEAR: "linears",
    OpKind.ROTATE: "attention",
    OpKind.COMPRESS: "attention",
    OpKind.ATTENTION: "attention",
    OpKind.RANK_BARRIER: "collectives",
}


def op_names(
    ops: Sequence[Op], layers: Sequence[int], head: int, *, without: Collection[OpKind]
) -> list[OpName]:
    """What a program's ops are called.

    Args:
        layers: Index of the first op of each layer.
        head: Index of the first op behind the layers.
        without: Kinds of ops that are left out.
    """
    names = []
    for index, op in enumerate(ops):
        if op.KIND not in without:
            layer = bisect_right(layers, index) - 1 if index < head else -1
            names.append(OpName(op.KIND.name.lower(), TIME_OF.get(op.KIND, ROWS), layer))
    return names
