"""Reads parts of files, and brings tensors to the type that is asked for.

All tensors are rows of bytes, whatever their type.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from services.worker.gguf.dequantize import dequantize
from services.worker.gguf.header_bytes import BadGguf

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
Array = NDArray[Any]


def read_bytes(path: Path, begin: int, end: int) -> Array:
    """Return a part of a file.

    Raises:
        BadGguf: The file cannot be read, or has become shorter.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = np.fromfile(file, np.uint8, end - begin)
    except OSError as error:
        raise BadGguf(f"{path} cannot be read: {error.strerror}") from error
    if len(data) != end - begin:
        raise BadGguf(f"{path} ends within a tensor; copy it again")
    return data


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

    Both are [rows, bytes].
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


def sync(path: Path) -> None:
    """Have the content of a file written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
