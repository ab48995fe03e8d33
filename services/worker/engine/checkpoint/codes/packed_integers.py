"""Reads packed integers of safetensors files as codes, or as the floats they stand for.

A value is scale * (code - zero point), in fp32 and not rounded to the scale's type. Where the parts lie is
said by `packed_layout.py` for compressed-tensors, and by `transposed_layout.py` for GPTQ and AWQ.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.packed_layout import WORD, read_bytes
from services.worker.engine.checkpoint.stored_tensor import PackedParts, StoredTensor

# the numbers and their scales as [outputs, ...], and the zero points of these scales if they differ
_Slice = tuple[NDArray[np.uint8], Tensor, NDArray[Any] | None]
_PLACES_IN_AWQ = [0, 4, 1, 5, 2, 6, 3, 7]  # where a word has its first number, its second, ...
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_packed(stored: StoredTensor, rows: range, columns: range) -> EncodedMatrix:
    """Read a slice of a packed matrix: whole groups that cover the columns begin at the first one's.

    Args:
        stored: A matrix of `joined_packed` or `joined_transposed`.
        rows: Consecutive outputs.
        columns: Consecutive inputs, beginning with a group.

    Raises:
        ModelError: A file cannot be read.
    """
    parts = stored.packed
    assert parts is not None
    group = stored.shape[1] // parts.groups
    span = range(columns.start // group, -(-columns.stop // group))
    read = _read_rows if parts.form == "compressed-tensors" else _read_transposed
    codes, scales, zeros = read(stored, parts, rows, columns, span)
    offsets, zero = None, parts.zero
    if zeros is not None:  # exact for scales of 16 bits; those of 32 are rounded once more
        offsets, zero = scales.float() * torch.from_numpy(zeros.astype(np.float32)), 0
    return EncodedMatrix(
        codes=torch.from_numpy(np.ascontiguousarray(codes)),
        bits=parts.bits, group=group, scales=scales, offsets=offsets, zero=zero,
    )  # fmt: skip


def read_packed_floats(stored: StoredTensor, out: Tensor, rows: range, columns: range) -> None:
    """Read a slice as floats into a tensor, [len(rows), len(columns)]."""
    assert stored.packed is not None
    group = stored.shape[1] // stored.packed.groups
    begin = columns.start // group * group
    values = read_packed(stored, rows, range(begin, columns.stop)).decode()
    out.copy_(values[:, columns.start - begin :])


def _read_rows(stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range) -> _Slice:
    """Of compressed-tensors: words of rows, and zero points packed along the outputs."""
    words = _lines(stored, parts.width * 4, rows).view(np.int32)
    codes = _numbers(words, parts.bits, stored.shape[1])[:, columns.start : columns.stop]
    kind = _FLOATS[parts.scales.kind]
    lines = torch.from_numpy(_lines(parts.scales, parts.groups * kind.itemsize, rows))
    scales = lines.view(kind).view(len(rows), parts.groups)[:, span.start : span.stop].contiguous()
    if parts.zeros is None:
        return codes, scales, None
    held, skip = _words_of(rows, parts.bits)
    packed = _lines(parts.zeros, parts.groups * 4, held).view(np.int32)
    numbers = _numbers(np.ascontiguousarray(packed.T), parts.bits, len(rows) + skip)
    return codes, scales, numbers[span.start : span.stop, skip:].T


def _read_transposed(
    stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range
) -> _Slice:
    """Of GPTQ and AWQ: inputs follow each other, and scales and zero points lie by groups."""
    outputs, bits, some = stored.shape[0], parts.bits, slice(rows.start, rows.stop)
    if parts.form == "awq":
        codes = _awq_numbers(_lines(stored, outputs * bits // 8, columns).view(np.int32))[:, some].T
    else:
        held, skip = _words_of(columns, bits)
        words = _lines(stored, outputs * 4, held).view(np.int32)[:, some]
        codes = _numbers(np.ascontiguousarray(words.T), bits, len(columns) + skip)[:, skip:]
    kind = _FLOATS[parts.scales.kind]
    lines = torch.from_numpy(_lines(parts.scales, outputs * kind.itemsize, span))
    scales = lines.view(kind).view(len(span), outputs)[:, some].T.contiguous()
    if parts.zeros is None:
        return codes, scales, None
    packed = _lines(parts.zeros, outputs * bits // 8, span).view(np.int32)
    zeros = _awq_numbers(packed) if parts.form == "awq" else _numbers(packed, bits, outputs)
    return codes, scales, zeros[:, some].T.astype(np.int32) + parts.zeros_above


def _words_of(numbers: range, bits: int) -> tuple[range, int]:
    """The words that have some numbers, and how many others the first one has before them."""
    each = WORD // bits
    held = range(numbers.start // each, -(-numbers.stop // each))
    return held, numbers.start - held.start * each


def _awq_numbers(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Unpack words of AWQ, [lines, words], into numbers, [lines, 8 * words]."""
    numbers = _numbers(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    return numbers[..., _PLACES_IN_AWQ].reshape(len(words), -1)


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
