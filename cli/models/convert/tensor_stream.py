"""Reads the tensors of a model one at a time, and brings each to the type that is asked for.

All tensors are rows of bytes, whatever their type.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from services.worker.gguf.dequantize import dequantize
from services.worker.gguf.header_bytes import BadGguf

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor where it lies.

    Attributes:
        name: As Hugging Face calls it.
        kind: Its type.
        shape: A matrix is [out, in].
        path: Its file.
        begin: Its first byte there.
        end: The byte after its last.
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Return its bytes where it lies."""
        return self.end - self.begin

    def read(self) -> Array:
        """Return the bytes, in rows: [rows, bytes].

        Raises:
            BadGguf: The file cannot be read, or has become shorter.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                data = np.fromfile(file, np.uint8, self.end - self.begin)
        except OSError as error:
            raise BadGguf(f"{self.path} cannot be read: {error.strerror}") from error
        if len(data) != self.end - self.begin:
            raise BadGguf(f"{self.path} ends within the tensor {self.name}; copy it again")
        return data.reshape(int(np.prod(self.shape[:-1], dtype=np.int64)), -1)


def can_quantize(kind: GGMLQuantizationType) -> bool:
    """Return whether the `gguf` package can make this type of numbers."""
    if kind in FLOATS:
        return True
    try:
        quants.quantize(np.zeros((1, GGML_QUANT_SIZES[kind][0]), np.float32), kind)
    except (NotImplementedError, KeyError):
        return False
    return True


def fits(shape: tuple[int, ...], kind: GGMLQuantizationType) -> bool:
    """Return whether a tensor can have that type: quantized ones are matrices of whole blocks."""
    return kind in FLOATS or (len(shape) >= 2 and shape[-1] % GGML_QUANT_SIZES[kind][0] == 0)


def num_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """Return the bytes of a tensor of that type."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return int(np.prod(shape, dtype=np.int64)) // block * block_bytes


def to_kind(rows: Array, source: GGMLQuantizationType, target: GGMLQuantizationType) -> Array:
    """Return rows of bytes of one type as rows of bytes of another; nothing changes if they are the same.

    Args:
        rows: [rows, bytes].
        source: Their type.
        target: The type that is wanted.
    """
    if source == target:
        return rows
    if source == GGMLQuantizationType.F16:
        values = rows.view(np.float16).astype(np.float32)
    elif source == GGMLQuantizationType.F32:
        values = rows.view(np.float32)
    else:
        values = dequantize(np.ascontiguousarray(rows).reshape(-1), source).reshape(len(rows), -1)
    with np.errstate(over="ignore"):  # numbers beyond fp16 become infinite
        made = quants.quantize(np.ascontiguousarray(values), target)
    return np.ascontiguousarray(made).view(np.uint8).reshape(len(rows), -1)


def pair_rows(rows: Array, head_dim: int) -> Array:
    """Put the rows of a query or key matrix in pairs that are rotated together, as Llama has them in GGUF.

    Args:
        rows: [heads * head_dim, any], where row i of a head is rotated with row i + head_dim / 2.
        head_dim: Rows of a head.
    """
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def unpair_rows(rows: Array, head_dim: int) -> Array:
    """Undo `pair_rows`."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def order_rows(tensor: SourceTensor, rows: Array, head_dim: int, *, paired: bool) -> Array:
    """Return the rows of a query or key matrix, or the numbers of its bias, in the order of the other format.

    Args:
        tensor: Where they come from.
        rows: Its bytes in rows; a bias is one row.
        head_dim: Rows of a head.
        paired: Whether they are to be in pairs, as in GGUF files.
    """
    change = pair_rows if paired else unpair_rows
    if len(tensor.shape) == 2:
        return change(rows, head_dim)
    numbers = rows.reshape(tensor.shape[0], -1)
    return change(numbers, head_dim).reshape(rows.shape)


def sync(path: Path) -> None:
    """Have the content of a file written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def total_bytes(tensors: list[SourceTensor]) -> int:
    """Return the bytes of all tensors where they come from."""
    return sum(tensor.end - tensor.begin for tensor in tensors)


def progress(tensors: list[SourceTensor]) -> Iterator[tuple[SourceTensor, int]]:
    """Yield each tensor with the bytes that are behind it when it is done."""
    done = 0
    for tensor in tensors:
        done += tensor.end - tensor.begin
        yield tensor, done
