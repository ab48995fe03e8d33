"""What attention reads and does to its inputs and scores; see `src/attention/`."""

import ctypes
from ctypes import c_float, c_int64

from services.worker.engine.native.structs import ADDRESS
from services.worker.engine.native.structs.rows import NormRule


class PageChoice(ctypes.Structure):
    """Which pages a token reads; see `src/attention/pages.h`."""

    _fields_ = [("recent", c_int64), ("sinks", c_int64), ("stride", c_int64)]


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
