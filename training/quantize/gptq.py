"""GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, 2022): rounds input by input, and moves errors to later inputs.

With H the second moments of the inputs, the error of a rounded column is moved to the columns that are not
rounded yet, by the rows of the Cholesky factor of H's inverse (section 3.3, steps 1 to 3). Inputs are taken
by importance; each keeps the scale of its place, chosen beforehand, so files need no order of inputs.
"""

import torch
from torch import Tensor

from training.quantize.grids import Codes, Grid, best_scales

_DAMP = 0.01  # of the mean diagonal, as in the paper
_BLOCK = 128  # columns whose later updates are done at once


def gptq(weight: Tensor, moments: Tensor, grid: Grid) -> Codes:
    """Round a matrix so that its outputs change least.

    Args:
        weight: fp32 [outputs, inputs].
        moments: Sum of x x^T over the calibration's inputs x, fp32 [inputs, inputs].
        grid: The grid.
    """
    diagonal = moments.diagonal()
    scales, zeros = best_scales(weight, diagonal, grid)
    order = diagonal.argsort(descending=True, stable=True)
    factor = _factor(moments[order][:, order])
    left = weight[:, order].clone()
    rounded = torch.empty_like(left)
    spans = order // grid.group
    column_scales, column_zeros = scales.float()[:, spans], zeros.float()[:, spans]
    for begin in range(0, left.shape[1], _BLOCK):
        end = min(begin + _BLOCK, left.shape[1])
        part, rows = left[:, begin:end], factor[begin:end, begin:end]
        errors = torch.empty_like(part)
        for at in range(end - begin):
            column, scale = part[:, at], column_scales[:, begin + at]
            zero = column_zeros[:, begin + at]
            code = (column / scale + zero).round_().clamp_(0, grid.most)
            rounded[:, begin + at] = code
            error = (column - (code - zero) * scale) / rows[at, at]
            part[:, at:].addr_(error, rows[at, at:], alpha=-1)
            errors[:, at] = error
        left[:, end:].addmm_(errors, factor[begin:end, end:], alpha=-1)
    codes = torch.empty_like(rounded)
    codes[:, order] = rounded
    return Codes(grid, codes.to(torch.uint8), scales, zeros)


def _factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of damped moments, computed in float64."""
    damped = moments.double()
    mean = float(damped.diagonal().mean()) or 1.0
    damped.diagonal().add_(_DAMP * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True).float()
    return factor
