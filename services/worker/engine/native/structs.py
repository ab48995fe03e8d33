"""The structs that Python and the kernels share; those of the ops are in `ops.py`.

Field by field as in `src/`; addresses are integers, and the code that fills one in keeps its memory alive. A
field that was changed on one side only is refused when the library is loaded (`library.py`).
"""

import ctypes
from ctypes import c_double, c_float, c_int8, c_int32, c_int64, c_uint32, c_uint64
from enum import IntEnum

ADDRESS = c_uint64


class WeightType(IntEnum):
    """How packed weights are stored."""

    F32 = 0
    BF16 = 1
    F16 = 2
    INT8 = 3
    CODES = 4
    BF16_PAIRS = 5


class ScaleType(IntEnum):
    """How scales and offsets of codes are stored."""

    NONE = 0
    F16 = 1
    BF16 = 2
    F32 = 3


class CodeKind(IntEnum):
    """How codes are stored; see `src/weights/code_form.h`."""

    TWO_BITS = 0
    FOUR_BITS = 1
    FOUR_BIT_TABLE = 2
    EIGHT_BITS = 3


class CodeForm(ctypes.Structure):
    """The form of a matrix of codes; see `src/weights/code_form.h`."""

    _fields_ = [
        ("kind", c_int32),
        ("group", c_int32),
        ("scales", c_int32),
        ("offsets", c_int32),
        ("zero", c_int32),
        ("table", c_int8 * 16),
    ]


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


class OpSpan(ctypes.Structure):
    """When a thread computed an op; see `src/op_trace.h`."""

    _fields_ = [("begin_ns", c_int64), ("end_ns", c_int64), ("place", c_int64)]


class OpTrace(ctypes.Structure):
    """Where the spans of ops are written; see `src/op_trace.h`."""

    _fields_ = [("spans", ADDRESS), ("counts", ADDRESS), ("capacity", c_int64), ("first", c_int64)]


class PageChoice(ctypes.Structure):
    """Which pages a token reads; see `src/attention/pages.h`."""

    _fields_ = [("recent", c_int64), ("sinks", c_int64), ("stride", c_int64)]


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
        ("pages", PageChoice),
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
    """The input of a linear, as floats and as bytes with scales; see `src/weights/linear.h`."""

    _fields_ = [
        ("floats", ADDRESS),
        ("pairs", ADDRESS),
        ("codes", ADDRESS),
        ("scales", ADDRESS),
        ("starts", ADDRESS),
        ("sums", ADDRESS),
        ("stride", c_int64),
        ("byte_stride", c_int64),
    ]


class ActivationKind(IntEnum):
    """What a linear does to its sums; see `src/rows/activations.h`."""

    NONE = 0
    SILU = 1
    GELU = 2
    GELU_TANH = 3
    RELU = 4
    RELU2 = 5
    CLAMPED_SWIGLU = 6
    CAPPED = 7


class NormKind(IntEnum):
    """Kinds of norms; see `src/rows/norms.h`."""

    NONE = 0
    RMS = 1
    LAYER = 2


class NormRule(ctypes.Structure):
    """A norm of the vector of a token; zeros: none. See `src/rows/norms.h`."""

    _fields_ = [("weight", ADDRESS), ("bias", ADDRESS), ("eps", c_float), ("kind", c_int32)]


class CutNorm(ctypes.Structure):
    """An RMS norm over a dimension that is cut over the ranks; see `src/rows/cut_norm.h`."""

    _fields_ = [
        ("rows", ADDRESS),
        ("stride", c_int64),
        ("count", c_int64),
        ("weight", ADDRESS),
        ("size", c_int64),
        ("eps", c_float),
        ("counts", c_int32),
        ("own", ADDRESS),
        ("sums", ADDRESS),
        ("num_ranks", c_int64),
        ("rank_stride", c_int64),
    ]


class OutputRule(ctypes.Structure):
    """What a linear does to its sums before they are stored; see `src/rows/activations.h`."""

    _fields_ = [
        ("activation", c_int32),
        ("gated", c_int32),
        ("accumulate", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class LinearOutput(ctypes.Structure):
    """Where a linear writes, and what it does to the sums; see `src/weights/linear.h`."""

    _fields_ = [
        ("y", ADDRESS),
        ("stride", c_int64),
        ("columns", c_int64),
        ("bias", ADDRESS),
        ("rule", OutputRule),
    ]


class Residual(ctypes.Structure):
    """A residual sum and the norm of it; see `src/rows/rows.h`."""

    _fields_ = [
        ("hidden", ADDRESS),
        ("columns", c_int64),
        ("width", c_int64),
        ("partials", ADDRESS),
        ("partial_stride", c_int64),
        ("num_partials", c_int64),
        ("bias", ADDRESS),
        ("positions", ADDRESS),
        ("sum_norm", NormRule),
        ("norm", NormRule),
        ("scale", c_float),
        ("assign", c_int32),
        ("normed", ADDRESS),
        ("tiled", TiledRows),
    ]


class Rotary(ctypes.Structure):
    """What is done to queries and keys before attention; see `src/attention/rotate.h`."""

    _fields_ = [
        ("cos", ADDRESS),
        ("sin", ADDRESS),
        ("half", c_int64),
        ("query_norm", NormRule),
        ("key_norm", NormRule),
        ("norm_stride", c_int64),
        ("clip", c_float),
    ]


class ScoreRule(ctypes.Structure):
    """What becomes of attention's scores; see `src/attention/scores.h`."""

    _fields_ = [("scale", c_float), ("softcap", c_float), ("slopes", ADDRESS), ("sinks", ADDRESS)]


class SegmentParts(ctypes.Structure):
    """Where segments of a long context are added up; see `src/attention/segments.h`."""

    _fields_ = [("parts", ADDRESS), ("finished", ADDRESS), ("segments", c_int64)]


class AttentionRows(ctypes.Structure):
    """The rows that an attention op reads and writes; see `src/attention/attention.h`."""

    _fields_ = [
        ("qkv", ADDRESS),
        ("qkv_stride", c_int64),
        ("out", ADDRESS),
        ("out_stride", c_int64),
        ("rules", ScoreRule),
        ("parts", SegmentParts),
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


class RowDraw(ctypes.Structure):
    """A row of scores to draw a token from; see `src/sampling/draw_rows.h`."""

    _fields_ = [
        ("scores", ADDRESS),
        ("best", c_int64),
        ("top_k", c_int64),
        ("bits", c_int64),
        ("top_p", c_double),
        ("temperature", c_double),
        ("inverse", c_float),
        ("min_p", c_float),
        ("token", c_int64),
    ]
