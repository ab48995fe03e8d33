"""Weight matrices packed in the order in which the kernels read them, and aligned buffers.

Everything here owns its memory; a program holds the addresses.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.structs import OutputRule, WeightType

LANES = 16  # floats that a kernel handles at a time; vectors are padded to a multiple
ALIGNMENT = 64  # bytes: a cache line

STORED_TYPES = {torch.float32: WeightType.F32, torch.bfloat16: WeightType.BF16, torch.float16: WeightType.F16}


def padded(count: int, to: int = LANES) -> int:
    """The next multiple."""
    return -(-count // to) * to


def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros, aligned to cache lines."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    # numpy's zeros come from the operating system: a page takes memory when it is first used
    raw = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    skip = -raw.data_ptr() % ALIGNMENT
    return raw[skip : skip + size].view(dtype).view(shape)


def vector(values: Tensor, length: int = 0) -> Tensor:
    """A copy of a vector in fp32, padded with zeros to `length` or a multiple of sixteen."""
    result = buffer(length or padded(len(values)))
    result[: len(values)] = values
    return result


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight matrix [outputs, inputs] in panels.

    Attributes:
        weights: The panels, with the scales of byte weights.
        bias: As long as the panels.
        type: How weights are stored.
        inputs: Columns of the matrix.
        panels: How many there are.
        columns: Outputs of a row; half of the matrix's if it is gated.
        rule: What is done to the sums. If it is gated, gate rows and the up rows that they gate lie side by
            side in each panel.
    """

    weights: Tensor
    bias: Tensor | None
    type: WeightType
    inputs: int
    panels: int
    columns: int
    rule: OutputRule

    @property
    def num_bytes(self) -> int:
        """Bytes that a pass over it reads."""
        return self.weights.numel()


def pack(
    kernels: KernelLibrary,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    int8: bool,
    rule: OutputRule | None = None,
) -> PackedLinear:
    """Packs [outputs, inputs] of any floating type.

    Args:
        kernels: They define the panels.
        weight: As stored; floats keep their type, so half precision takes half the memory.
        bias: [outputs], fp32.
        int8: Store bytes, with a scale for each output and 32 inputs.
        rule: What is done to the sums; None: nothing. If it is gated, the first half of the outputs gates the
            second.
    """
    columns, rule = weight.shape[0], rule or OutputRule()
    if rule.gated:
        columns //= 2
        weight = _side_by_side(weight, columns)
        bias = None if bias is None else _side_by_side(bias, columns)
    kind = WeightType.INT8 if int8 else STORED_TYPES[weight.dtype]
    source = (weight.float() if int8 else weight).contiguous()
    outputs, inputs = source.shape
    panels = -(-outputs // kernels.panel)
    packed = buffer(kernels.packed_bytes(outputs, inputs, kind), dtype=torch.uint8)
    kernels.pack(
        source.data_ptr(),
        outputs,
        inputs,
        kind,
        packed.data_ptr(),
        torch.get_num_threads(),
    )
    return PackedLinear(
        weights=packed,
        bias=None if bias is None else vector(bias, panels * kernels.panel),
        type=kind,
        inputs=inputs,
        panels=panels,
        columns=columns,
        rule=rule,
    )


def _side_by_side(fused: Tensor, half: int) -> Tensor:
    """[gate rows, up rows, ...] -> sixteen gate rows, the sixteen up rows that they gate, and so on."""
    missing = padded(half) - half
    tail = (0, 0) * (fused.dim() - 1)
    parts = [F.pad(part, (*tail, 0, missing)) for part in (fused[:half], fused[half:])]
    shape = (-1, LANES, *fused.shape[1:])
    return torch.stack([part.view(shape) for part in parts], dim=1).flatten(0, 2)
