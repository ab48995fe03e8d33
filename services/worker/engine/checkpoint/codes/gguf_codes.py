"""Quantized blocks of GGUF as codes, without loss.

The `gguf` package knows the layouts. So codes, scales and offsets are taken out of what it makes of copies of
the blocks in which the other parts are replaced: with scales of 1 its values are the codes, with codes of 1
the scales, with scales of 0 the offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.gguf.dequantize import dequantize

Bytes = NDArray[np.uint8]
_ONE = (0x00, 0x3C)  # a half of 1
# the twelve bytes in which Q4_K and Q5_K have eight scales and minima of 6 bits: scales of 1, minima of 0
_K_SCALES = (1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1)
_NIBBLES = 16  # bytes with the codes of 32 weights, the first half of them in the low bits
_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4_VALUES = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    0,
    -1,
    -2,
    -3,
    -4,
    -6,
    -8,
    -12,
)  # in halves, as the package's scales
Patch = Mapping[
    tuple[int, int], int | tuple[int, ...]
]  # a range of bytes of a block -> what is written there


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a type has its parts.

    Attributes:
        bits: Of the codes that are stored.
        group: Inputs of a scale.
        scales_of_1: Makes all scales 1 and all offsets 0.
        codes_of_1: Makes all codes stand for 1, and all offsets 0.
        scales_of_0: Makes all scales 0; empty: there are no offsets.
        half: Where the scale of the block is, a half; -1: it has several.
        half_offset: The same of what is added to each value.
        nibbles: Where the nibbles begin, of a type with a table.
        table: What its codes stand for.
    """

    bits: int
    group: int
    zero: int = 0
    scales_of_1: Patch = field(default_factory=dict)
    codes_of_1: Patch = field(default_factory=dict)
    scales_of_0: Patch = field(default_factory=dict)
    half: int = -1
    half_offset: int = -1
    nibbles: int = -1
    table: tuple[int, ...] = ()


_K4 = {(0, 2): _ONE, (2, 4): (0, 0), (4, 16): _K_SCALES}
_LAYOUTS: dict[str, _Layout] = {
    "Q4_0": _Layout(4, 32, 8, {(0, 2): _ONE}, half=0),
    "Q4_1": _Layout(4, 32, 0, {(0, 2): _ONE, (2, 4): (0, 0)}, half=0, half_offset=2),
    "Q5_0": _Layout(8, 32, 16, {(0, 2): _ONE}, half=0),
    "Q5_1": _Layout(8, 32, 0, {(0, 2): _ONE, (2, 4): (0, 0)}, half=0, half_offset=2),
    "Q8_0": _Layout(8, 32, 128, {(0, 2): _ONE}, half=0),
    "Q2_K": _Layout(
        2, 16, 0,
        {(0, 16): 1, (80, 82): _ONE, (82, 84): (0, 0)},
        {(16, 80): 0x55, (82, 84): (0, 0)},
        {(80, 82): (0, 0)},
    ),
    "Q3_K": _Layout(
        4, 16, 4,
        {(96, 104): 0x11, (104, 108): 0xAA, (108, 110): _ONE},
        {(0, 32): 0xFF, (32, 96): 0x55},
    ),
    "Q4_K": _Layout(4, 32, 0, _K4, {(2, 4): (0, 0), (16, 144): 0x11}, {(0, 2): (0, 0)}),
    "Q5_K": _Layout(8, 32, 0, _K4, {(2, 4): (0, 0), (16, 48): 0, (48, 176): 0x11}, {(0, 2): (0, 0)}),
    "Q6_K": _Layout(
        8, 16, 32, {(192, 208): 1, (208, 210): _ONE}, {(0, 128): 0x11, (128, 192): 0xAA}
    ),
    "TQ1_0": _Layout(2, 256, 1, {(52, 54): _ONE}, half=52),
    "TQ2_0": _Layout(2, 256, 1, {(64, 66): _ONE}, half=64),
    "IQ4_NL": _Layout(4, 32, half=0, nibbles=2, table=_IQ4_VALUES),
    "IQ4_XS": _Layout(4, 32, codes_of_1={(8, 136): 0x88}, nibbles=8, table=_IQ4_VALUES),
    "MXFP4": _Layout(4, 32, codes_of_1={(1, 17): 0x11}, nibbles=1, table=_MXFP4_VALUES),
}  # fmt: skip


def has_codes(kind: GGMLQuantizationType) -> bool:
    """Whether a type can be held as codes."""
    return kind.name in _LAYOUTS


def encoded(data: Bytes, kind: GGMLQuantizationType, rows: int) -> EncodedMatrix:
    """The codes of whole blocks.

    Args:
        data: [bytes], those of `rows` rows.
        kind: A type that `has_codes`.
    """
    layout, size = _LAYOUTS[kind.name], GGML_QUANT_SIZES[kind][1]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    if layout.table:
        bytes_of = blocks[:, layout.nibbles :].reshape(-1, 1, _NIBBLES)
        codes = np.concatenate([bytes_of & 15, bytes_of >> 4], axis=1)
    else:
        units = dequantize(_patched(blocks, layout.scales_of_1).reshape(-1), kind)
        codes = (units + layout.zero).astype(np.uint8)
    if layout.half >= 0:
        scales = _halves(blocks, layout.half, rows)
    else:
        scales = _of_groups(_patched(blocks, layout.codes_of_1), kind, layout.group, rows)
    offsets = None
    if layout.half_offset >= 0:
        offsets = -_halves(blocks, layout.half_offset, rows)
    elif layout.scales_of_0:
        offsets = -_of_groups(_patched(blocks, layout.scales_of_0), kind, layout.group, rows)
    return EncodedMatrix(
        codes=torch.from_numpy(codes.reshape(rows, -1)),
        bits=layout.bits,
        group=layout.group,
        scales=scales,
        offsets=offsets,
        zero=layout.zero,
        table=torch.tensor(layout.table, dtype=torch.int8) if layout.table else None,
    )


def _patched(blocks: Bytes, patch: Patch) -> Bytes:
    copy = blocks.copy()
    for (begin, end), value in patch.items():
        copy[:, begin:end] = value
    return copy


def _halves(blocks: Bytes, begin: int, rows: int) -> Tensor:
    """[rows, blocks of a row], fp16."""
    return torch.from_numpy(blocks[:, begin : begin + 2].copy()).view(torch.float16).view(rows, -1)


def _of_groups(blocks: Bytes, kind: GGMLQuantizationType, group: int, rows: int) -> Tensor:
    """One value of each group, in the narrowest type that holds all exactly, [rows, groups]."""
    values = torch.from_numpy(dequantize(blocks.reshape(-1), kind)[::group].copy()).view(rows, -1)
    for kind_of in (torch.float16, torch.bfloat16):
        narrow = values.to(kind_of)
        if torch.equal(narrow.float(), values):
            return narrow
    return values
