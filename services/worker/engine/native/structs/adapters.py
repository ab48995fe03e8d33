"""What adapters add to linears, packed; see `src/adapters/`."""

import ctypes
from ctypes import c_int32, c_int64

from services.worker.engine.native.structs import ADDRESS


class UpSlice(ctypes.Structure):
    """Where the weights of sixteen outputs are; see `src/adapters/low_rank.h`."""

    _fields_ = [("begin", c_int32), ("count", c_int32), ("at", c_int64)]


class PackedLowRank(ctypes.Structure):
    """An adapter's matrices for one linear; see `src/adapters/low_rank.h`."""

    _fields_ = [
        ("down", ADDRESS),
        ("up", ADDRESS),
        ("slices", ADDRESS),
        ("factors", ADDRESS),
        ("rank", c_int32),
        ("halves", c_int32),
    ]


class AdapterTable(ctypes.Structure):
    """The adapters in memory; see `src/adapters/low_rank.h`."""

    _fields_ = [("slots", ADDRESS), ("inner", ADDRESS), ("stride", c_int64)]


class LowRankPart(ctypes.Structure):
    """What is packed for one matrix of a linear; see `src/adapters/pack_low_rank.h`."""

    _fields_ = [
        ("down", ADDRESS),
        ("up", ADDRESS),
        ("factors", ADDRESS),
        ("rank", c_int64),
        ("outputs", c_int64),
    ]


class LinearShape(ctypes.Structure):
    """The shape of a linear; see `src/adapters/pack_low_rank.h`."""

    _fields_ = [("inputs", c_int64), ("panels", c_int64), ("gated", c_int32), ("num_parts", c_int32)]
