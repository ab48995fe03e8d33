"""Rounds matrices to codes: one scale, and for asymmetric grids one zero point, for each group of inputs.

A value is scale * (code - zero), computed in fp32: the arithmetic of compressed-tensors' pack-quantized form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

# shares of a group's range that its codes span; clipping large values may make all others better
_SHRINKS = (1.0, 0.97, 0.94, 0.9, 0.86, 0.82, 0.78, 0.74)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How a matrix is rounded.

    Attributes:
        bits: Of a code: 4 or 8.
        group: Consecutive inputs that share a scale; a multiple of 8 that divides the inputs.
        symmetric: All zero points are the middle of the range.
        scale_type: Type in which scales are stored, and so rounded before they are used.
    """

    bits: int = 4
    group: int = 128
    symmetric: bool = False
    scale_type: torch.dtype = torch.float16

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The code of zero in a symmetric grid."""
        return 1 << (self.bits - 1)


@dataclass(frozen=True, slots=True)
class Codes:
    """A rounded matrix.

    Attributes:
        grid: How it was rounded.
        codes: uint8 [outputs, inputs].
        scales: Of the grid's scale type, [outputs, groups].
        zeros: uint8 [outputs, groups].
    """

    grid: Grid
    codes: Tensor
    scales: Tensor
    zeros: Tensor

    def values(self) -> Tensor:
        """The matrix, fp32 [outputs, inputs]."""
        outputs, groups = self.scales.shape
        grouped = self.codes.view(outputs, groups, -1).float() - self.zeros.float().unsqueeze(-1)
        return (grouped * self.scales.float().unsqueeze(-1)).view(outputs, -1)

    def split(self, outputs: Sequence[int]) -> "list[Codes]":
        """Return the matrices of which this one has the rows, one after the other."""
        ends = list(accumulate(outputs))
        parts = [slice(end - count, end) for end, count in zip(ends, outputs, strict=True)]
        return [Codes(self.grid, self.codes[rows], self.scales[rows], self.zeros[rows]) for rows in parts]


def round_to(weight: Tensor, scales: Tensor, zeros: Tensor, grid: Grid) -> Codes:
    """Round each value to the nearest code of its group's scale and zero point.

    Args:
        weight: fp32 [outputs, inputs].
        scales: [outputs, groups].
        zeros: uint8 [outputs, groups].
    """
    outputs, groups = scales.shape
    grouped = weight.view(outputs, groups, -1)
    codes = _codes(grouped, scales.float().unsqueeze(-1), zeros.float().unsqueeze(-1), grid)
    return Codes(grid, codes.view(outputs, -1).to(torch.uint8), scales, zeros)


def plain_scales(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return scales and zero points that span the whole range of each group, for rounding to nearest."""
    grouped = weight.view(len(weight), -1, grid.group)
    return _span(grouped.amin(-1), grouped.amax(-1), grid)


def best_scales(weight: Tensor, importance: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return for each group the scale and zero point with the least error, of ranges clipped more or less.

    Args:
        weight: fp32 [outputs, inputs].
        importance: Mean square of each input, fp32 [inputs]; errors count by it.
    """
    grouped = weight.view(len(weight), -1, grid.group)
    counts = importance.view(1, -1, grid.group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    best, scales, zeros = None, torch.empty(0), torch.empty(0)
    for shrink in _SHRINKS:
        for tried in _tries(low * shrink, high * shrink, grid):
            found = _codes(grouped, tried[0].float().unsqueeze(-1), tried[1].float().unsqueeze(-1), grid)
            rounded = (found - tried[1].float().unsqueeze(-1)) * tried[0].float().unsqueeze(-1)
            error = ((rounded - grouped).square() * counts).sum(-1)
            if best is None:
                best, (scales, zeros) = error, tried
                continue
            better = error < best
            best = torch.where(better, error, best)
            scales = torch.where(better, tried[0], scales)
            zeros = torch.where(better, tried[1], zeros)
    return scales, zeros


def _tries(low: Tensor, high: Tensor, grid: Grid) -> list[tuple[Tensor, Tensor]]:
    """Ways to span a range. A symmetric grid has a code more below zero: the larger side may take it."""
    first = _span(low, high, grid)
    if not grid.symmetric:
        return [first]
    largest = torch.where(-low > high, low, high)
    scale = stored_scales(largest / -grid.middle, grid)
    return [first, (scale, first[1])]


def _span(low: Tensor, high: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    if grid.symmetric:
        scales = stored_scales(torch.maximum(-low, high) / (grid.middle - 1), grid)
        return scales, torch.full_like(scales, grid.middle, dtype=torch.uint8)
    low, high = low.clamp(max=0), high.clamp(min=0)  # zero has a code
    scales = stored_scales((high - low) / grid.most, grid)
    zeros = (-low / scales.float()).round().clamp(0, grid.most)
    return scales, zeros.to(torch.uint8)


def stored_scales(scales: Tensor, grid: Grid) -> Tensor:
    """Return scales as they are stored; none is zero."""
    stored = scales.to(grid.scale_type)
    return torch.where(stored == 0, torch.finfo(grid.scale_type).tiny, stored)


def _codes(grouped: Tensor, scales: Tensor, zeros: Tensor, grid: Grid) -> Tensor:
    return (grouped / scales + zeros).round().clamp(0, grid.most)
