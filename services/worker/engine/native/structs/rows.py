"""Rows of activations: what linears, norms, sums and sampling read and write; see `src/rows/`."""

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64
from enum import IntEnum

from services.worker.engine.native.structs import ADDRESS


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
        ("low_rank", ADDRESS),
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
