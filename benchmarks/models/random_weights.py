"""Writes random weights of a given shape as safetensors files, one file in memory at a time."""

import json
from collections.abc import Callable, Sequence
from math import prod, sqrt
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.models.shapes import BYTES

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Spec = tuple[str, tuple[int, ...]]  # name and shape of a tensor


def plan_files(specs: Sequence[Spec], dtype: str, max_bytes: int) -> dict[str, list[Spec]]:
    """Return the tensors of each file, of at most `max_bytes` (a larger tensor gets a file of its own)."""
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
        return {"model.safetensors": groups[0]}
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


def write_files(
    directory: Path, files: dict[str, list[Spec]], dtype: str, seed: int, written: Callable[[int], None]
) -> None:
    """Write each file under another name and move it into place when it is whole; an index for several.

    Args:
        directory: Where to.
        files: See `plan_files`.
        dtype: fp32, fp16 or bf16.
        seed: With a tensor's name it decides the tensor's numbers, whatever file it is in.
        written: Called with the bytes that were made.
    """
    total = 0
    for file, specs in files.items():
        tensors = {}
        for name, shape in specs:
            tensors[name] = random_tensor(name, shape, dtype, seed)
            written(tensors[name].nbytes)
            total += tensors[name].nbytes
        partial = directory / f"{file}.partial"
        try:
            save_file(tensors, partial, {"format": "pt"})
            partial.replace(directory / file)
        finally:
            partial.unlink(missing_ok=True)
    if len(files) > 1:
        weight_map = {name: file for file, specs in files.items() for name, _ in specs}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def random_tensor(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Return the numbers of one tensor.

    Norms are near 1; matrices are normal with the deviation 1 / sqrt(inputs), so that activations keep their
    size from layer to layer and the logits of the next token differ by a few units.
    """
    numbers = np.random.Generator(np.random.SFC64([seed, crc32(name.encode())])).standard_normal(
        shape, dtype=np.float32
    )
    numbers *= np.float32(0.02 if len(shape) == 1 else 1 / sqrt(prod(shape[1:])))
    if len(shape) == 1:
        numbers += np.float32(1)
    return torch.from_numpy(numbers).to(_TYPES[dtype])
