"""AWQ (Lin et al., 2023): inputs with large activations get finer codes: their columns are enlarged first.

Column j of a matrix is multiplied by s_j and the input divided by it: what computes the input takes the
division (a norm's weights, or the rows of the linear before). s is the mean magnitude of the input to a power
that is searched. Here each s_j is a power of two, so the division is exact in every type of floats.
"""

import torch
from torch import Tensor

from training.quantize.grids import Grid, plain_scales, round_to

_POWERS = (0.25, 0.375, 0.5, 0.625, 0.75, 1.0)


def output_error(weight: Tensor, rounded: Tensor, moments: Tensor) -> float:
    """Return the sum of squared errors of the outputs over all inputs: tr(D M D^T) with D = W - W'."""
    change = weight - rounded
    return float(((change @ moments) * change).sum(dtype=torch.float64))


def input_scales(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor | None:
    """Return the factors of the columns, fp32 [inputs], all powers of two; None if none is better than ones.

    Args:
        weight: fp32 [outputs, inputs].
        moments: Sum of x x^T, fp32 [inputs, inputs].
        grid: The grid.
    """
    magnitude = moments.diagonal().clamp(min=0).sqrt()
    if not bool((magnitude > 0).any()):
        return None
    logs = magnitude.clamp(min=float(magnitude.max()) * 1e-4).log2()
    best, least = None, _scaled_error(weight, moments, grid, torch.ones_like(magnitude))
    for power in _POWERS:
        exponents = logs * power
        factors = torch.exp2((exponents - exponents.median()).round().clamp(-4, 4))
        error = _scaled_error(weight, moments, grid, factors)
        if error < least:
            best, least = factors, error
    return best


def _scaled_error(weight: Tensor, moments: Tensor, grid: Grid, factors: Tensor) -> float:
    scaled = weight * factors
    rounded = round_to(scaled, *plain_scales(scaled, grid), grid)
    return output_error(weight, rounded.values() / factors, moments)
