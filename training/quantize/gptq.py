"""GPTQ (Frantar, Ashkboos, Hoefler, Alistarh, 2022): rounds input by input, and moves errors to later inputs.

With H the second moments of the inputs, the error of a rounded column is moved to the columns that are not
rounded yet, by the rows of the Cholesky factor of H's inverse (section 3.3, steps 1 to 3). Inputs are taken
by importance; each keeps the scale of its group, chosen beforehand, so files need no order of inputs.
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
    """
    diagonal = moments.diagonal()
    scales, zeros = best_scales(weight, diagonal, grid)
    order = diagonal.argsort(descending=True, stable=True)
    factor = _factor(moments[order][:, order])
    # [inputs, outputs], so that what an input changes lies together
    left = weight.T[order].contiguous()
    rounded = torch.empty_like(left)
    spans = order // grid.group
    all_scales, all_zeros = scales.float().T[spans], zeros.float().T[spans]
    for begin in range(0, len(left), _BLOCK):
        end = min(begin + _BLOCK, len(left))
        part, rows = left[begin:end], factor[begin:end, begin:end]
        errors = torch.empty_like(part)
        for at in range(end - begin):
            values, scale, zero = part[at], all_scales[begin + at], all_zeros[begin + at]
            code = (values / scale + zero).round_().clamp_(0, grid.most)
            rounded[begin + at] = code
            errors[at] = (values - (code - zero) * scale) / rows[at, at]
            part[at:].addr_(rows[at, at:], errors[at], alpha=-1)
        left[end:].addmm_(factor[begin:end, end:].T, errors, alpha=-1)
    codes = torch.empty_like(rounded)
    codes[order] = rounded
    return Codes(grid, codes.T.contiguous().to(torch.uint8), scales, zeros)


def _factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of damped moments, computed in float64."""
    damped = moments.double()
    mean = float(damped.diagonal().mean()) or 1.0
    damped.diagonal().add_(_DAMP * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True).float()
    return factor
