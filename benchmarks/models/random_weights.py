"""Writes random weights of a given shape as safetensors files, one tensor in memory at a time.

The file format is written here (a JSON header with offsets, then the bytes), because the library takes all
tensors of a file at once. The shape lists the tensors.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from benchmarks.models.shapes import BYTES

_NAMES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_ROWS_AT_ONCE = 1 << 24  # numbers made at a time; bounds the memory beside the file's own buffer

Spec = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file to be written."""

    name: str
    tensors: tuple[Spec, ...]


def plan_files(specs: Sequence[Spec], dtype: str, max_bytes: int) -> list[WeightFile]:
    """Cut the tensors into files of at most `max_bytes` (a larger tensor gets a file of its own)."""
    groups: list[list[Spec]] = [[]]
    filled = 0
    for spec in specs:
        size = prod(spec[1]) * BYTES[dtype]
        if groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += size
    if len(groups) == 1:
        return [WeightFile("model.safetensors", tuple(groups[0]))]
    total = len(groups)
    return [
        WeightFile(f"model-{number:05d}-of-{total:05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    ]


def write_index(directory: Path, files: Sequence[WeightFile], dtype: str) -> None:
    """Write which file holds which tensor; nothing when there is one file only."""
    if len(files) == 1:
        return
    total = sum(prod(shape) * BYTES[dtype] for file in files for _, shape in file.tensors)
    weight_map = {name: file.name for file in files for name, _ in file.tensors}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_file(path: Path, file: WeightFile, dtype: str, seed: int, written: Callable[[int], None]) -> None:
    """Write one file under another name and moves it into place when it is whole.

    Args:
        path: Where to.
        file: Its tensors.
        dtype: fp32, fp16 or bf16.
        seed: With a tensor's name it decides the tensor's numbers, whatever file it is in.
        written: Called with the bytes that were added.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in file.tensors:
        end = offset + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the bytes after the header
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name, shape in file.tensors:
                for part in random_tensor(name, shape, dtype, seed):
                    out.write(part.data)
                    written(part.nbytes)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def random_tensor(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> Iterator[NDArray[np.generic]]:
    """Yield the numbers of one tensor in pieces of whole rows, in the bytes of the file.

    Norms are near 1; matrices are normal with the deviation 1 / sqrt(inputs), so that activations keep their
    size from layer to layer and the logits of the next token differ by a few units.
    """
    rng = np.random.Generator(np.random.SFC64([seed, crc32(name.encode())]))
    rows, columns = shape[0], prod(shape[1:])
    scale = np.float32(0.02 if len(shape) == 1 else 1 / sqrt(columns))
    step = max(1, _ROWS_AT_ONCE // columns)
    for start in range(0, rows, step):
        count = min(step, rows - start) * columns
        numbers = rng.standard_normal(count, dtype=np.float32)
        numbers *= scale
        if len(shape) == 1:
            numbers += np.float32(1)
        yield _as(numbers, dtype)


def _as(numbers: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    if dtype == "fp32":
        return numbers
    if dtype == "fp16":
        return numbers.astype(np.float16)
    bits = numbers.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # to nearest, ties to even
    return (rounded >> np.uint32(16)).astype(np.uint16)
