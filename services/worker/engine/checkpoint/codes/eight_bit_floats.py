"""Reads floats of eight bits with scales as fp32: no form of codes holds them exactly.

A value is the float times its scale, in fp32 and rounded once: it is not rounded to the scale's type.
"""

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.file_bytes import read_bytes
from services.worker.engine.checkpoint.stored_tensor import StoredTensor

_KINDS = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_SCALES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_eight_bits(stored: StoredTensor, out: Tensor, rows: range, columns: range) -> None:
    """Read a slice into a tensor, [len(rows), len(columns)].

    Args:
        stored: A matrix of eight-bit floats with `scales` for each `block`.
        out: Of any floating type.
        rows: Consecutive outputs.
        columns: Consecutive inputs.

    Raises:
        ModelError: A file cannot be read.
    """
    assert stored.scales is not None
    if not rows:
        return
    height, width = stored.block
    row_bytes = stored.shape[1]
    held = torch.from_numpy(read_bytes(stored, rows.start * row_bytes, len(rows) * row_bytes))
    values = held.view(_KINDS[stored.kind]).view(len(rows), row_bytes)[:, columns.start : columns.stop]
    across = stored.scales.shape[1]
    first = rows.start // height
    scales = _read_scales(stored.scales, range(first, (rows.stop - 1) // height + 1)).view(-1, across)
    down = torch.arange(rows.start, rows.stop) // height - first
    along = torch.arange(columns.start, columns.stop) // width
    out.copy_(values.float() * scales[down][:, along])


def _read_scales(scales: StoredTensor, lines: range) -> Tensor:
    kind = _SCALES.get(scales.kind)
    line_bytes = scales.shape[1] * (1 if kind is None else kind.itemsize)
    held = read_bytes(scales, lines.start * line_bytes, len(lines) * line_bytes)
    if kind is None:  # exponents
        return torch.from_numpy(np.ldexp(np.float32(1), held.astype(np.int32) - 127))
    return torch.from_numpy(held).view(kind).float()
