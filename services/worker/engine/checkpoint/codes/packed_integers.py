"""Reads integers of safetensors files as codes, or as the floats they stand for.

A value is scale * (code - zero point), in fp32 and not rounded to the scale's type. Where the parts lie is
said by `packed_layout.py` and `byte_layout.py` for compressed-tensors and BitNet, by `transposed_layout.py`
for GPTQ and AWQ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.file_bytes import read_bytes
from services.worker.engine.checkpoint.codes.input_order import SortedInputs, read_order, sorted_inputs
from services.worker.engine.checkpoint.codes.number_words import unpacked, words_of
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, PackedParts, StoredTensor

_ORDER_IN_AWQ = [0, 4, 1, 5, 2, 6, 3, 7]  # where a word has its first number, its second, ...
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BYTE_ZERO = 128  # of signed bytes as codes


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some rows of a matrix.

    Attributes:
        numbers: uint8 [outputs, inputs].
        scales: [outputs, groups].
        zeros: Zero points of the same shape; None: all are the parts' `zero`.
    """

    numbers: NDArray[np.uint8]
    scales: Tensor
    zeros: NDArray[Any] | None


def read_packed(stored: StoredTensor, rows: range, columns: range) -> EncodedMatrix | None:
    """Read a slice as codes.

    Args:
        stored: A matrix with `packed` parts.
        rows: Consecutive outputs.
        columns: Consecutive inputs.

    Returns:
        None: No form of codes holds it exactly.

    Raises:
        ModelError: A file cannot be read.
    """
    parts = stored.packed
    assert parts is not None
    group = stored.shape[1] // parts.groups
    begin = columns.start if parts.order is not None else columns.start // group * group
    part, order = _read(stored, parts, rows, range(begin, columns.stop)), None
    if parts.order is not None:
        inputs = sorted_inputs(read_order(parts.order, columns), group)
        part, group, order = _sorted(part, inputs), inputs.size, torch.from_numpy(inputs.order)
    numbers, bits, zero, offsets = part.numbers, 4 if parts.bits == 3 else parts.bits, parts.zero, None
    if part.zeros is not None and part.scales.dtype == torch.float32:
        # products of a zero point and such a scale would be rounded
        bits = 4 if parts.bits < 4 else 8
        zero, most = 1 << (bits - 1), (1 << bits) - 1
        spread = np.repeat(part.zeros.astype(np.int16), group, axis=1)[:, : numbers.shape[1]]
        shifted = numbers - spread + np.int16(zero)
        if ((shifted < 0) | (shifted > most)).any():
            return None
        numbers = shifted.astype(np.uint8)
    elif part.zeros is not None:
        offsets, zero = part.scales.float() * torch.from_numpy(part.zeros.astype(np.float32)), 0
    matrix = EncodedMatrix(
        codes=torch.from_numpy(np.ascontiguousarray(numbers)),
        bits=bits, group=_held_group(group, parts.groups), scales=part.scales, offsets=offsets, zero=zero,
        order=order,
    )  # fmt: skip
    return matrix if order is not None else matrix.columns(range(columns.start - begin, columns.stop - begin))


def read_packed_floats(stored: StoredTensor, out: Tensor, rows: range, columns: range) -> None:
    """Read a slice as floats into a tensor, [len(rows), len(columns)]."""
    parts = stored.packed
    assert parts is not None
    group = stored.shape[1] // parts.groups
    if parts.order is None:
        begin = columns.start // group * group
        part = _read(stored, parts, rows, range(begin, columns.stop))
        groups = torch.arange(columns.stop - begin) // group
    else:
        begin = columns.start
        part = _read(stored, parts, rows, columns)
        groups = torch.from_numpy(read_order(parts.order, columns).astype(np.int64))
    zeros = float(parts.zero) if part.zeros is None else _floats(part.zeros)[:, groups]
    values = part.scales.float()[:, groups] * (_floats(part.numbers) - zeros)
    out.copy_(values[:, columns.start - begin :])


def _sorted(part: _Slice, inputs: SortedInputs) -> _Slice:
    """A slice with all groups, its inputs sorted, and with the scales of these."""
    zeros = None if part.zeros is None else part.zeros[:, inputs.groups]
    groups = torch.from_numpy(inputs.groups.astype(np.int64))
    return _Slice(part.numbers[:, inputs.columns], part.scales[:, groups], zeros)


def _held_group(group: int, groups: int) -> int:
    """A group as codes are held in: that of a whole row is rounded up."""
    return group if groups > 1 else -(-group // 32) * 32


def _floats(numbers: NDArray[Any]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


def _read(stored: StoredTensor, parts: PackedParts, rows: range, columns: range) -> _Slice:
    """Read a slice, with all groups of its inputs, or all there are if the inputs have an order."""
    group = stored.shape[1] // parts.groups
    span = range(columns.start // group, -(-columns.stop // group))
    if parts.order is not None:
        span = range(parts.groups)
    read = _READERS.get(parts.form, _read_transposed)
    return read(stored, parts, rows, columns, span)


def _read_rows(stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range) -> _Slice:
    """Layout of compressed-tensors: words of rows, and zero points packed along the outputs."""
    words = _lines(stored, parts.width * 4, rows).view(np.int32)
    numbers = unpacked(words, parts.bits, stored.shape[1])[:, columns.start : columns.stop]
    scales = _row_scales(parts, rows, span)
    if parts.zeros is None:
        return _Slice(numbers, scales, None)
    held, skip = words_of(rows, parts.bits)
    packed = _lines(parts.zeros, parts.groups * 4, held).view(np.int32)
    zeros = unpacked(np.ascontiguousarray(packed.T), parts.bits, len(rows) + skip)
    return _Slice(numbers, scales, zeros[span.start : span.stop, skip:].T)


def _read_byte_rows(
    stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range
) -> _Slice:
    """Layout of compressed-tensors: signed bytes, which become codes from 0 on, and signed zero points."""
    held = _lines(stored, stored.shape[1], rows)[:, columns.start : columns.stop]
    numbers, scales = held ^ np.uint8(_BYTE_ZERO), _row_scales(parts, rows, span)
    if parts.zeros is None:
        return _Slice(numbers, scales, None)
    own = range(1) if parts.zeros.shape[0] == 1 else rows
    zeros = _lines(parts.zeros, parts.groups, own)[:, span.start : span.stop] ^ np.uint8(_BYTE_ZERO)
    return _Slice(numbers, scales, np.broadcast_to(zeros, (len(rows), len(span))))


def _read_ternary(
    stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range
) -> _Slice:
    """Layout of BitNet: a line of bytes has outputs that are a quarter of the matrix apart."""
    del span  # there is one scale
    lines, width = stored.shape[0] // 4, stored.shape[1]
    numbers: NDArray[np.uint8] = np.empty((len(rows), len(columns)), dtype=np.uint8)
    begin = rows.start
    while begin < rows.stop:
        quarter, line = divmod(begin, lines)
        end = min(rows.stop, (quarter + 1) * lines)
        held = _lines(stored, width, range(line, line + end - begin))[:, columns.start : columns.stop]
        numbers[begin - rows.start : end - rows.start] = held >> np.uint8(2 * quarter) & np.uint8(3)
        begin = end
    scales = _row_scales(parts, rows, range(1))
    return _Slice(numbers, 1 / scales.float() if parts.form == "divided ternary" else scales, None)


def _row_scales(parts: PackedParts, rows: range, span: range) -> Tensor:
    """Scales that lie by outputs, [outputs, groups]; one of the whole matrix is repeated."""
    kind = _FLOATS[parts.scales.kind]
    whole = parts.scales.shape[0] == 1
    held = _lines(parts.scales, parts.groups * kind.itemsize, range(1) if whole else rows)
    scales = torch.from_numpy(held).view(kind).view(-1, parts.groups)[:, span.start : span.stop]
    return scales.expand(len(rows), -1).contiguous()


def _read_transposed(
    stored: StoredTensor, parts: PackedParts, rows: range, columns: range, span: range
) -> _Slice:
    """Layout of GPTQ and AWQ: inputs follow each other, and scales and zero points lie by groups."""
    outputs, bits, some = stored.shape[0], parts.bits, slice(rows.start, rows.stop)
    if parts.form == "awq":
        numbers = _awq_numbers(_lines(stored, outputs * bits // 8, columns).view(np.int32))[:, some].T
    else:
        held, skip = words_of(columns, bits)
        words = _lines(stored, outputs * 4, held).view(np.int32)[:, some]
        numbers = unpacked(np.ascontiguousarray(words.T), bits, len(columns) + skip)[:, skip:]
    size = ITEM_BYTES[parts.scales.kind]
    lines = torch.from_numpy(_lines(parts.scales, outputs * size, span)).view(_FLOATS[parts.scales.kind])
    scales = lines.view(len(span), outputs)[:, some].T.contiguous()
    if parts.zeros is None:
        return _Slice(numbers, scales, None)
    packed = _lines(parts.zeros, outputs * bits // 8, span).view(np.int32)
    zeros = _awq_numbers(packed) if parts.form == "awq" else unpacked(packed, bits, outputs)
    return _Slice(numbers, scales, zeros[:, some].T.astype(np.int32) + parts.zeros_above)


_READERS = {
    "packed": _read_rows,
    "bytes": _read_byte_rows,
    "ternary": _read_ternary,
    "divided ternary": _read_ternary,
}


def _awq_numbers(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Unpack words of AWQ, [lines, words], into numbers, [lines, 8 * words]."""
    numbers = unpacked(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    return numbers[..., _ORDER_IN_AWQ].reshape(len(words), -1)


def _lines(stored: StoredTensor, line_bytes: int, rows: range) -> NDArray[np.uint8]:
    """Whole rows of a tensor, uint8 [rows, bytes]."""
    data = read_bytes(stored, rows.start * line_bytes, len(rows) * line_bytes)
    return data.reshape(len(rows), line_bytes)
