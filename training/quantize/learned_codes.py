"""A rounded matrix whose codes and scales are learned by gradients.

Each value has a position between codes, from which its code is rounded. Rounding passes gradients on as they
are (the straight-through estimator; Esser et al., Learned Step Size Quantization, 2020, has those of scales;
Nagel et al., AdaRound, 2020, and Cheng et al., SignRound, 2024, learn which of two codes a value takes). A
position may move by more than one code.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.quantize.grids import Codes, stored_scales


class LearnedCodes:
    """A matrix on its grid. Zero points stay as they are.

    Args:
        start: The codes and scales to begin with.

    Attributes:
        shifts: By which positions have moved, in codes, fp32 [outputs, groups, inputs of a group].
        logs: Logarithms of the factors of the scales, fp32 [outputs, groups].
    """

    def __init__(self, start: Codes) -> None:
        self._start = start
        outputs, groups = start.scales.shape
        self._values = start.values().view(outputs, groups, -1)
        self.shifts = torch.zeros_like(self._values).requires_grad_()
        self.logs = torch.zeros(outputs, groups).requires_grad_()

    def values(self, dtype: torch.dtype) -> Tensor:
        """The matrix as it is rounded now, [outputs, inputs], with gradients."""
        scales = self._start.scales.float() * self.logs.exp()
        scales = scales + (stored_scales(scales.detach(), self._start.grid).float() - scales.detach())
        fixed = _Fixed(self._values, self._start.zeros.float(), self._start.grid.most)
        made: Tensor = _Rounding.apply(fixed, self.shifts, scales)  # type: ignore[no-untyped-call]
        return made.to(dtype)

    def rounded(self) -> Codes:
        """The codes and scales as they are now."""
        with torch.no_grad():
            scales = stored_scales(self._start.scales.float() * self.logs.exp(), self._start.grid)
            positions = _places(self._values, self.shifts, scales.float(), self._start.zeros.float())
            codes = positions.round_().clamp_(0, self._start.grid.most).to(torch.uint8)
        return Codes(self._start.grid, codes.flatten(1), scales, self._start.zeros)


def _places(values: Tensor, shifts: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return (values / scales.unsqueeze(-1)).add_(shifts).add_(zeros.unsqueeze(-1))


class _Fixed(NamedTuple):
    """What is not learned: the values to begin with, the zero points, and the largest code."""

    values: Tensor
    zeros: Tensor
    most: int


class _Rounding(torch.autograd.Function):
    """scale * (code - zero), of the code that is nearest to values / scale + zero + shift."""

    @staticmethod
    def forward(ctx: Any, fixed: _Fixed, shifts: Tensor, scales: Tensor) -> Tensor:
        positions = _places(fixed.values, shifts, scales, fixed.zeros)
        codes = positions.round().clamp_(0, fixed.most)
        inside = (positions > -0.5) & (positions < fixed.most + 0.5)
        codes.sub_(fixed.zeros.unsqueeze(-1))
        ctx.save_for_backward(codes, inside, scales)
        ctx.values = fixed.values
        return (codes * scales.unsqueeze(-1)).flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        codes, inside, scales = ctx.saved_tensors
        gradient = gradients[0].view(codes.shape)
        passed = gradient * inside
        by_shift = passed * scales.unsqueeze(-1)
        # a larger scale moves positions towards the zero point
        by_scale = (gradient * codes).sum(-1) - (passed * ctx.values).sum(-1) / scales
        return None, by_shift, by_scale
