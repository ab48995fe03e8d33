"""The oracle of the bf16 kernels: the sums of `vdpbf16ps`, one multiply-add after the other.

Products of two bf16 numbers are exact in fp64, and so is nearly every sum with an fp32 number. It is then
rounded to fp32, as a fused multiply-add does.
"""

import torch
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny  # normal; smaller ones are read and written as zeros


def linear(rows: Tensor, matrix: Tensor) -> Tensor:
    """[rows, inputs] times the transpose of [outputs, inputs], both rounded to bf16: [rows, outputs]."""
    x, w = (_flushed(side.bfloat16().float()).double() for side in (rows, matrix))
    total = x.new_zeros(len(x), len(w))
    for pair in range(0, x.shape[1], 2):
        for position in (pair + 1, pair):
            if position < x.shape[1]:
                total = _flushed((total + x[:, position, None] * w[:, position]).float()).double()
    return total.float()


def _flushed(values: Tensor) -> Tensor:
    return torch.where(values.abs() < _SMALLEST, torch.zeros_like(values), values)
