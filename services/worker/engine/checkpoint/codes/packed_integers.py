"""Reads packed integers of safetensors files (`packed_layout.py`) as codes, or as the floats they stand for.

A value is scale * (code - zero point), in fp32 and not rounded to the scale's type.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.packed_layout import WORD, read_bytes
from services.worker.engine.checkpoint.stored_tensor import StoredTensor

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_packed(stored: StoredTensor, rows: range, columns: range) -> EncodedMatrix:
    """Read a slice of a packed matrix: whole groups that cover the columns begin at the first one's.

    Args:
        stored: A matrix of `joined_packed`.
        rows: Consecutive outputs.
        columns: Consecutive inputs, beginning with a group.

    Raises:
        ModelError: A file cannot be read.
    """
    parts = stored.packed
    assert parts is not None
    bits, groups = parts.bits, parts.scales.shape[1]
    group = stored.shape[1] // groups
    span = range(columns.start // group, -(-columns.stop // group))
    words = _lines(stored, parts.width * 4, rows).view(np.int32)
    codes = _numbers(words, bits, stored.shape[1])[:, columns.start : columns.stop]
    kind = _FLOATS[parts.scales.kind]
    lines = torch.from_numpy(_lines(parts.scales, groups * kind.itemsize, rows))
    scales = lines.view(kind).view(len(rows), groups)[:, span.start : span.stop].contiguous()
    offsets, zero = None, 1 << (bits - 1)
    if parts.zeros is not None:
        each = WORD // bits
        held = range(rows.start // each, -(-rows.stop // each))
        packed = _lines(parts.zeros, groups * 4, held).view(np.int32)
        numbers = _numbers(np.ascontiguousarray(packed.T), bits, len(held) * each)
        begin = rows.start - held.start * each
        zeros = torch.from_numpy(numbers[:, begin : begin + len(rows)].T.copy())[:, span.start : span.stop]
        offsets, zero = (
            scales.float() * zeros.float(),
            0,
        )  # exact for scales of 16 bits; fp32 scales are rounded once more
    return EncodedMatrix(
        codes=torch.from_numpy(np.ascontiguousarray(codes)),
        bits=bits, group=group, scales=scales, offsets=offsets, zero=zero,
    )  # fmt: skip


def read_packed_floats(stored: StoredTensor, out: Tensor, rows: range, columns: range) -> None:
    """Read a slice as floats into a tensor, [len(rows), len(columns)]."""
    assert stored.packed is not None
    group = stored.shape[1] // stored.packed.scales.shape[1]
    begin = columns.start // group * group
    values = read_packed(stored, rows, range(begin, columns.stop)).decode()
    out.copy_(values[:, columns.start - begin :])


def _lines(stored: StoredTensor, line_bytes: int, rows: range) -> NDArray[np.uint8]:
    """Whole rows of a tensor, uint8 [rows, bytes]."""
    data = read_bytes(stored, rows.start * line_bytes, len(rows) * line_bytes)
    return data.reshape(len(rows), line_bytes)


def _numbers(words: NDArray[np.int32], bits: int, count: int) -> NDArray[np.uint8]:
    """Unpack words, [rows, words], into numbers, [rows, count]."""
    if bits == 8:
        return np.ascontiguousarray(words).view(np.uint8)[:, :count]
    each = 8 // bits
    spread = np.ascontiguousarray(words).view(np.uint8)[..., None] >> (np.arange(each, dtype=np.uint8) * bits)
    return (spread & ((1 << bits) - 1)).astype(np.uint8).reshape(len(words), -1)[:, :count]
