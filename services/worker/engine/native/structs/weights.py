"""How weights are stored; see `src/weights/`."""

import ctypes
from ctypes import c_int8, c_int32
from enum import IntEnum


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
