"""Rounds the matrices that share an input in several ways, and keeps the one whose outputs change least.

The ways are fitted on most of the calibration's inputs and compared on the rest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from training.quantize.gptq import gptq
from training.quantize.grids import Codes, Grid, best_scales, plain_scales, round_to

Way = Literal["nearest", "gptq", "awq", "awq+gptq"]

_POWERS = (0.25, 0.375, 0.5, 0.625, 0.75, 1.0)


def output_error(weight: Tensor, rounded: Tensor, moments: Tensor) -> float:
    """Return the sum of squared errors of the outputs over all inputs: tr(D M D^T) with D = W - W'."""
    change = weight - rounded
    return float(((change @ moments) * change).sum(dtype=torch.float64))


def input_scales(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor | None:
    """Return the factors of the columns, fp32 [inputs], all powers of two; None if none is better than ones.

    This is AWQ (Lin et al., 2023): inputs with large activations get finer codes. Column j of a matrix is
    multiplied by s_j and the input divided by it: what computes the input takes the division (a norm's
    weights, or the rows of the linear before). s is the mean magnitude of the input to a power that is
    searched. Each s_j is a power of two, so the division is exact in every type of floats.

    Args:
        weight: fp32 [outputs, inputs].
        moments: Sum of x x^T, fp32 [inputs, inputs].
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


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of x x^T over a linear's inputs, fp32 [inputs, inputs] each.

    Attributes:
        fit: Of those that the codes are fitted to.
        check: Of those by which ways are compared.
    """

    fit: Tensor
    check: Tensor


@dataclass(frozen=True, slots=True)
class Rounded:
    """Matrices that share an input, rounded in one way.

    Attributes:
        codes: Of each matrix.
        factors: The matrices were multiplied by these, so the input is to be divided, fp32 [inputs]; or None.
        errors: Of every way that was tried: the share of the outputs' energy that is lost.
    """

    way: Way
    codes: list[Codes]
    factors: Tensor | None
    errors: dict[str, float]


def round_best(weights: Sequence[Tensor], moments: Moments, grid: Grid, *, scalable: bool) -> Rounded:
    """Round matrices in every way and return the best.

    Args:
        weights: The matrices, fp32 [outputs, inputs].
        scalable: Whether their input can be divided by factors.
    """
    stacked = torch.cat(list(weights))
    nearest = round_to(stacked, *plain_scales(stacked, grid), grid)
    tried: list[tuple[Way, Codes, Tensor | None]] = [
        ("nearest", nearest, None),
        ("gptq", gptq(stacked, moments.fit, grid), None),
    ]
    factors = input_scales(stacked, moments.fit, grid) if scalable else None
    scaled, fit = stacked, moments.fit
    if factors is not None:
        scaled, fit = stacked * factors, moments.fit / factors / factors[:, None]
        tried.append(("awq+gptq", gptq(scaled, fit, grid), factors))
    # where the input cannot be divided, what remains of AWQ is its search for the best clipping
    tried.append(("awq", round_to(scaled, *best_scales(scaled, fit.diagonal(), grid), grid), factors))
    energy = output_error(stacked, torch.zeros_like(stacked), moments.check) or 1.0
    errors: dict[str, float] = {}
    for mode, codes, scale in tried:
        values = codes.values() if scale is None else codes.values() / scale
        errors[mode] = output_error(stacked, values, moments.check) / energy
    mode, codes, scale = min(tried, key=lambda one: errors[one[0]])
    return Rounded(mode, codes.split([len(one) for one in weights]), scale, errors)
