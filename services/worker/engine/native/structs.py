"""The structs that Python and the kernels share; those of the ops are in `ops.py`.

Field by field as in `src/`; addresses are integers, and the code that fills one in keeps its memory alive. A
field that was changed on one side only is refused when the library is loaded (`library.py`).
"""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64
from enum import IntEnum

ADDRESS = c_uint64


class WeightType(IntEnum):
    """How packed weights are stored."""

    F32 = 0
    BF16 = 1
    F16 = 2
    INT8 = 3


class ForwardBatch(ctypes.Structure):
    """The inputs of a forward pass; see `src/cache.h`."""

    _fields_ = [
        ("num_rows", c_int32),
        ("num_spans", c_int32),
        ("num_samples", c_int32),
        ("num_full_blocks", c_int32),
        ("token_ids", ADDRESS),
        ("positions", ADDRESS),
        ("slot_mapping", ADDRESS),
        ("spans", ADDRESS),
        ("block_tables", ADDRESS),
        ("sample_rows", ADDRESS),
        ("sliding_slot_mapping", ADDRESS),
        ("sliding_tables", ADDRESS),
        ("window_slot_mapping", ADDRESS),
        ("window_spans", ADDRESS),
        ("window_tables", ADDRESS),
        ("full_blocks", ADDRESS),
    ]


class AttentionLayer(ctypes.Structure):
    """A layer's heads on this rank and their cache; see `src/cache.h`."""

    _fields_ = [
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("width", c_int64),
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("window", c_int64),
        ("sliding", c_int64),
    ]


class ColdBlocks(ctypes.Structure):
    """The compressed blocks of a layer; see `src/cache.h`."""

    _fields_ = [
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("key_scales", ADDRESS),
        ("value_scales", ADDRESS),
        ("hot_blocks", c_int64),
    ]


class TiledRows(ctypes.Structure):
    """The input of a linear, of floats or of codes with scales; see `src/linear.h`."""

    _fields_ = [
        ("floats", ADDRESS),
        ("codes", ADDRESS),
        ("scales", ADDRESS),
        ("starts", ADDRESS),
        ("stride", c_int64),
    ]


class LinearOutput(ctypes.Structure):
    """Where a linear writes, and what it does to the sums; see `src/linear.h`."""

    _fields_ = [
        ("y", ADDRESS),
        ("stride", c_int64),
        ("columns", c_int64),
        ("bias", ADDRESS),
        ("gated", c_int32),
    ]


class Residual(ctypes.Structure):
    """A residual sum and the norm of it; see `src/rows.h`."""

    _fields_ = [
        ("hidden", ADDRESS),
        ("columns", c_int64),
        ("width", c_int64),
        ("partials", ADDRESS),
        ("partial_stride", c_int64),
        ("num_partials", c_int64),
        ("bias", ADDRESS),
        ("norm", ADDRESS),
        ("eps", c_float),
        ("assign", c_int32),
        ("normed", ADDRESS),
        ("tiled", TiledRows),
    ]


class Rotary(ctypes.Structure):
    """Rotation tables and norms of queries and keys; see `src/attention.h`."""

    _fields_ = [
        ("cos", ADDRESS),
        ("sin", ADDRESS),
        ("query_norm", ADDRESS),
        ("key_norm", ADDRESS),
        ("eps", c_float),
    ]


class AttentionRows(ctypes.Structure):
    """The rows that an attention op reads and writes; see `src/attention.h`."""

    _fields_ = [
        ("qkv", ADDRESS),
        ("qkv_stride", c_int64),
        ("out", ADDRESS),
        ("out_stride", c_int64),
    ]


class LayerPointers(ctypes.Structure):
    """One layer's blocks, for copies; see `src/blocks.h`."""

    _fields_ = [
        ("keys", ADDRESS),
        ("values", ADDRESS),
        ("key_scales", ADDRESS),
        ("value_scales", ADDRESS),
        ("item_bytes", c_int64),
        ("sliding", c_int64),
    ]


class CachePointers(ctypes.Structure):
    """The whole cache, for copies of blocks; see `src/blocks.h`."""

    _fields_ = [
        ("num_layers", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("width", c_int64),
        ("layers", ctypes.POINTER(LayerPointers)),
    ]


class RankBarrier(ctypes.Structure):
    """A rank's view of the counters that all ranks of a host share; see `src/rank_barrier.h`."""

    _fields_ = [
        ("published", ADDRESS),
        ("timeout_ns", c_int64),
        ("count", c_uint32),
        ("rank", c_int32),
        ("world", c_int32),
        ("spin", c_int32),
    ]
