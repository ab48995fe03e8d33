"""The structs and ops of a mixture of experts, field by field as in `src/experts/`."""

import ctypes
from ctypes import c_float, c_int32, c_int64
from enum import IntEnum

from services.worker.engine.native.structs import ADDRESS
from services.worker.engine.native.structs.ops import Op, OpHeader, OpKind
from services.worker.engine.native.structs.rows import LinearOutput, TiledRows
from services.worker.engine.native.structs.weights import CodeForm

MAX_EXPERTS = 1024  # as in `src/experts/routing.h`


class Scoring(IntEnum):
    """How a router's logits become scores; see `src/experts/routing.h`."""

    SOFTMAX = 0
    SIGMOID = 1
    SOFTMAX_CHOSEN = 2


class RouterRule(ctypes.Structure):
    """How experts are chosen; see `src/experts/routing.h`."""

    _fields_ = [
        ("scoring", c_int32),
        ("normalize", c_int32),
        ("groups", c_int32),
        ("chosen_groups", c_int32),
        ("group_best", c_int32),
        ("scale", c_float),
        ("selection_bias", ADDRESS),
    ]


class ExpertSlots(ctypes.Structure):
    """Which rows the experts have in a pass; see `src/experts/routing.h`."""

    _fields_ = [
        ("experts", c_int64),
        ("chosen", c_int64),
        ("choices", ADDRESS),
        ("shares", ADDRESS),
        ("slots", ADDRESS),
        ("begins", ADDRESS),
        ("active", ADDRESS),
        ("rows", ADDRESS),
        ("owners", ADDRESS),
    ]


class RouteOp(Op):
    """Experts and weights of each row."""

    KIND = OpKind.ROUTE
    _fields_ = (
        ("header", OpHeader),
        ("rule", RouterRule),
        ("slots", ExpertSlots),
        ("logits", ADDRESS),
        ("stride", c_int64),
    )


class SortRowsOp(Op):
    """Rows of each expert."""

    KIND = OpKind.SORT_ROWS
    _fields_ = (("header", OpHeader), ("slots", ExpertSlots))


class TileExpertsOp(Op):
    """Rows copied into the tiles of their experts."""

    KIND = OpKind.TILE_EXPERTS
    _fields_ = (
        ("header", OpHeader),
        ("by_slot", c_int32),
        ("slots", ExpertSlots),
        ("rows", ADDRESS),
        ("width", c_int64),
        ("tiled", TiledRows),
    )


class ExpertLinearOp(Op):
    """Matrix products of all experts that have rows."""

    KIND = OpKind.EXPERT_LINEAR
    _fields_ = (
        ("header", OpHeader),
        ("type", c_int32),
        ("slots", ExpertSlots),
        ("input", TiledRows),
        ("weights", ADDRESS),
        ("inputs", c_int64),
        ("panels", c_int64),
        ("output", LinearOutput),
        ("form", CodeForm),
    )


class MixExpertsOp(Op):
    """The weighted sum of each row's experts."""

    KIND = OpKind.MIX_EXPERTS
    _fields_ = (
        ("header", OpHeader),
        ("accumulate", c_int32),
        ("slots", ExpertSlots),
        ("parts", ADDRESS),
        ("shared", ADDRESS),
        ("gate", ADDRESS),
        ("gate_stride", c_int64),
        ("out", ADDRESS),
        ("width", c_int64),
    )
