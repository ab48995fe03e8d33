"""Reads consecutive rows of a tensor in an open file, or columns of them, through a small buffer.

Only the bytes of the slice are read. Where numbers are stored in blocks and the slice begins within one, the
whole block is read. Files are not mapped, so a rank's memory is that of its weights, and a file that shrinks
meanwhile raises an error instead of a signal.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.codes.eight_bit_floats import read_eight_bits
from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.four_bit_floats import GROUP, GROUP_BYTES, VALUES, decoded
from services.worker.engine.checkpoint.codes.gguf_codes import encoded, has_codes
from services.worker.engine.checkpoint.codes.packed_integers import read_packed, read_packed_floats
from services.worker.engine.checkpoint.names.tensor_view import RowPairs
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.gguf.dequantize import dequantize

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BUFFER_BYTES = 1 << 22  # most bytes of one read through the buffer, unless a row is longer


def four_bit_codes(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> EncodedMatrix:
    """MXFP4 as codes, [rows, 32 * groups], of blocks [rows, 16 * groups] and scales [rows, groups]."""
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(len(blocks), -1)
    # the table has whole numbers, twice the values; bf16 holds all powers of two that a byte names
    halves = np.ldexp(np.float32(0.5), scales.astype(np.int32) - 127)
    return EncodedMatrix(
        codes=torch.from_numpy(codes),
        bits=4,
        group=GROUP,
        scales=torch.from_numpy(halves).to(torch.bfloat16),
        table=torch.from_numpy((2 * VALUES).astype(np.int8)),
    )


@dataclass(frozen=True, slots=True)
class OpenTensor:
    """A tensor of one or two dimensions in an open file.

    Attributes:
        name: The tensor's name, for refusals.
        stored: How and where it is stored.
    """

    name: str
    stored: StoredTensor
    file: int

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.stored.shape[1] if len(self.stored.shape) == 2 else 1


def dtype_of(stored: StoredTensor) -> torch.dtype:
    """The type that holds a tensor's values exactly."""
    return TYPES.get(stored.kind, torch.float32)


class SliceReader:
    """Reads slices with one reused buffer: many short-lived ones would leave holes between the weights.

    Attributes:
        read_bytes: Bytes read so far.
    """

    def __init__(self) -> None:
        self.read_bytes = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def read(self, tensor: OpenTensor, out: Tensor, rows: range, columns: range) -> None:
        """Reads a slice into a contiguous tensor, converted to its type.

        Args:
            tensor: [rows, columns], or one value for each row.
            out: [len(rows), len(columns)].
            rows: Consecutive.
            columns: Consecutive.

        Raises:
            ModelError: The file cannot be read, or has become shorter.
        """
        if tensor.stored.block[0]:
            step = max(1, BUFFER_BYTES // (tensor.width * 4))
            for begin in range(0, len(rows), step):
                read_eight_bits(tensor.stored, out[begin : begin + step], rows[begin : begin + step], columns)
            self.read_bytes += len(rows) * tensor.width
        elif tensor.stored.scales is not None:
            self._read_four_bits(tensor, out, rows, columns)
        elif tensor.stored.packed is not None:
            step = max(1, BUFFER_BYTES // (tensor.width * 4))
            for begin in range(0, len(rows), step):
                some = rows[begin : begin + step]
                read_packed_floats(tensor.stored, out[begin : begin + step], some, columns)
            self.read_bytes += len(rows) * tensor.stored.packed.width * 4
        elif tensor.stored.blocks is None:
            self._read_plain(tensor, out, rows, columns)
        else:
            self._read_blocks(tensor, tensor.stored.blocks, out, rows, columns)

    def read_codes(self, tensor: OpenTensor, rows: range, columns: range) -> EncodedMatrix | None:
        """Reads a slice of a tensor of blocks as codes; None if it cannot be held so.

        Raises:
            ModelError: As `read`.
        """
        packed = tensor.stored.packed
        if packed is not None and rows and columns:
            self.read_bytes += len(rows) * packed.width * 4
            return read_packed(tensor.stored, rows, columns)
        if tensor.stored.coded and tensor.stored.scales is not None and rows and columns:
            found = [four_bit_codes(*part) for part in self._four_bit_parts(tensor, rows, columns)]
            begin = columns.start // GROUP * GROUP
            return EncodedMatrix.joined(found).columns(range(columns.start - begin, columns.stop - begin))
        kind = tensor.stored.blocks
        if kind is None or not has_codes(kind) or not rows or not columns:
            return None
        size, size_bytes = GGML_QUANT_SIZES[kind]
        first, last = columns.start // size, -(-columns.stop // size)  # the blocks that cover the columns
        row_bytes, line_bytes = tensor.width // size * size_bytes, (last - first) * size_bytes
        step, parts = max(1, BUFFER_BYTES // ((last - first) * size)), list[EncodedMatrix]()
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            data: NDArray[np.uint8] = np.empty((len(some), line_bytes), dtype=np.uint8)
            self._fill_lines(tensor, data, some.start * row_bytes + first * size_bytes, row_bytes)
            parts.append(encoded(data, kind, len(some)))
        within = range(columns.start - first * size, columns.stop - first * size)
        return EncodedMatrix.joined(parts).columns(within)

    def _read_plain(self, tensor: OpenTensor, out: Tensor, rows: range, columns: range) -> None:
        dtype, width = dtype_of(tensor.stored), tensor.width
        step = max(1, BUFFER_BYTES // (len(columns) * dtype.itemsize))
        if out.dtype == dtype and len(columns) == width:
            step = max(1, len(rows))  # one read, in place
        for begin in range(0, len(rows), step):
            part = out[begin : begin + step]
            buffer = part
            if part.dtype != dtype:
                buffer = self._buffer(part.numel() * dtype.itemsize).view(dtype).view(part.shape)
            offset = (rows[begin] * width + columns.start) * dtype.itemsize
            lines: NDArray[np.uint8] = buffer.view(torch.uint8).numpy()
            self._fill_lines(tensor, lines, offset, width * dtype.itemsize)
            if buffer is not part:
                part.copy_(buffer)

    def _read_blocks(
        self, tensor: OpenTensor, kind: GGMLQuantizationType, out: Tensor, rows: range, columns: range
    ) -> None:
        size, size_bytes = GGML_QUANT_SIZES[kind]
        first, last = columns.start // size, -(-columns.stop // size)  # the blocks that cover the columns
        line_bytes, row_bytes = (last - first) * size_bytes, tensor.width // size * size_bytes
        within = slice(columns.start - first * size, columns.stop - first * size)
        step = max(1, BUFFER_BYTES // ((last - first) * size * out.element_size()))
        for begin in range(0, len(rows), step):
            part = out[begin : begin + step]
            data: NDArray[np.uint8] = self._buffer(len(part) * line_bytes).numpy()
            offset = rows[begin] * row_bytes + first * size_bytes
            self._fill_lines(tensor, data.reshape(len(part), line_bytes), offset, row_bytes)
            values = torch.from_numpy(dequantize(data, kind)).view(len(part), -1)
            part.copy_(values[:, within])

    def _read_four_bits(self, tensor: OpenTensor, out: Tensor, rows: range, columns: range) -> None:
        first = columns.start // GROUP
        within = slice(columns.start - first * GROUP, columns.stop - first * GROUP)
        begin = 0
        for blocks, scales in self._four_bit_parts(tensor, rows, columns):
            part = out[begin : begin + len(blocks)]
            part.copy_(torch.from_numpy(decoded(blocks, scales))[:, within])
            begin += len(blocks)

    def _four_bit_parts(
        self, tensor: OpenTensor, rows: range, columns: range
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Blocks and scales of the groups that cover the columns, of some rows at a time."""
        scales = tensor.stored.scales
        assert scales is not None
        groups, first, last = tensor.width // GROUP, columns.start // GROUP, -(-columns.stop // GROUP)
        step = max(1, BUFFER_BYTES // ((last - first) * GROUP * 4))
        with scales.path.open("rb") as file:  # which may be another one
            sources = ((tensor, GROUP_BYTES), (OpenTensor(tensor.name, scales, file.fileno()), 1))
            for begin in range(0, len(rows), step):
                some, found = rows[begin : begin + step], []
                for source, size in sources:
                    data: NDArray[np.uint8] = np.empty((len(some), (last - first) * size), dtype=np.uint8)
                    self._fill_lines(source, data, (some[0] * groups + first) * size, groups * size)
                    found.append(data)
                yield found[0], found[1]

    def _fill_lines(self, tensor: OpenTensor, lines: NDArray[np.uint8], offset: int, stride: int) -> None:
        """Fills [lines, bytes] from an offset in the tensor; lines are `stride` bytes apart in the file."""
        whole = lines.shape[1] == stride
        for index, line in enumerate([lines.reshape(-1)] if whole else lines):
            _fill(tensor, line, offset + index * stride)
        self.read_bytes += lines.nbytes

    def _buffer(self, size: int) -> Tensor:
        if size > len(self._scratch):
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch[:size]


def halve_pairs(out: Tensor, rows: range, pairs: RowPairs) -> None:
    """Orders the paired rows of each head in place: the first ones of all pairs, then the second ones.

    Args:
        out: [len(rows), columns].
        rows: Those of whole heads.
    """
    head, half = pairs.head, pairs.count // 2
    if rows.start % head or len(rows) % head:
        raise ValueError(f"rows {rows.start} to {rows.stop} are no whole heads of {head}")
    for each in out.view(-1, head, out.shape[1]):
        part = each[pairs.first : pairs.first + pairs.count]
        part.view(2, half, -1).copy_(part.view(half, 2, -1).transpose(0, 1).clone())


def _fill(tensor: OpenTensor, memory: NDArray[np.uint8], offset: int) -> None:
    """Fills the memory with bytes of the tensor; one system call reads 2 GiB at most."""
    view, position, path = memory.data, tensor.stored.begin + offset, tensor.stored.path
    while view:
        try:
            count = os.preadv(tensor.file, [view], position)
        except OSError as error:
            raise ModelError(f"{path}: tensor {tensor.name} cannot be read: {error.strerror}") from error
        if count == 0:
            raise ModelError(f"{path} has become shorter while tensor {tensor.name} was read; copy it again")
        view, position = view[count:], position + count
