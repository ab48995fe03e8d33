"""Linear layers whose frozen weights are codes of 4 bits, made into floats when they are needed.

The codes are NormalFloat (QLoRA, arXiv 2305.14314): 16 levels that are equally likely in a normal
distribution, times a scale for each 64 inputs. The forward pass decodes a layer's weights, and the backward
pass decodes them again, so that those of one layer exist at a time.
"""

from typing import Any

import torch
from torch import Tensor, nn

GROUP = 64  # inputs that share a scale
# quantiles of the normal distribution, scaled to -1 .. 1 with an exact 0; appendix E of the paper
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)  # fmt: skip


class FourBitMatrix:
    """A matrix [outputs, inputs] as codes.

    Args:
        weight: A multiple of 64 inputs.
    """

    def __init__(self, weight: Tensor) -> None:
        outputs, inputs = weight.shape
        if inputs % GROUP:
            raise ValueError(f"{inputs} inputs are no multiple of {GROUP}")
        groups = weight.detach().float().reshape(outputs, inputs // GROUP, GROUP)
        self.scales = groups.abs().amax(2, keepdim=True).bfloat16()
        units = groups / self.scales.float().clamp(min=1e-12)
        levels = torch.tensor(LEVELS)
        codes = torch.bucketize(units, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
        codes = codes.reshape(outputs, inputs)
        self.codes = codes[:, 0::2] | (codes[:, 1::2] << 4)  # the first of two inputs in the low bits
        self.shape = weight.shape

    @property
    def num_bytes(self) -> int:
        """Return the bytes of codes and scales."""
        return self.codes.numel() + 2 * self.scales.numel()

    def decode(self) -> Tensor:
        """Return the values, bf16 [outputs, inputs]."""
        pairs = torch.index_select(_pairs(), 0, self.codes.view(-1).int()).view(torch.bfloat16)
        return (pairs.view(len(self.codes), -1, GROUP) * self.scales).view(self.shape)


def _pairs() -> Tensor:
    """Return the two levels of each byte, in bf16, as one number of 32 bits: [256]."""
    global _PAIRS  # noqa: PLW0603 (a constant that is made with torch)
    if _PAIRS is None:
        levels, codes = torch.tensor(LEVELS, dtype=torch.bfloat16), torch.arange(256)
        _PAIRS = (
            torch.stack([levels[codes & 15], levels[codes >> 4]], 1).contiguous().view(torch.int32).view(-1)
        )
    return _PAIRS


_PAIRS: Tensor | None = None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, matrix: FourBitMatrix) -> Tensor:
        ctx.matrix = matrix
        return inputs @ matrix.decode().to(inputs.dtype).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient @ ctx.matrix.decode().to(gradient.dtype), None


class FourBitLinear(nn.Linear):
    """A linear layer with such a weight; its bias stays as it was. `weight` is empty."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(1, 1, bias=False)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        self.bias = linear.bias
        self.matrix = FourBitMatrix(linear.weight)

    def forward(self, input: Tensor) -> Tensor:
        """See `nn.Linear`."""
        if torch.is_autocast_enabled("cpu"):
            input = input.to(torch.get_autocast_dtype("cpu"))
        outputs: Tensor = _Product.apply(input, self.matrix)  # type: ignore[no-untyped-call]
        return outputs if self.bias is None else outputs + self.bias.to(outputs.dtype)


def to_four_bits(model: nn.Module, names: list[str]) -> None:
    """Replace the named linear layers one after another, so that the floats of each are freed."""
    for name in names:
        parent, _, own = name.rpartition(".")
        holder = model.get_submodule(parent)
        setattr(holder, own, FourBitLinear(getattr(holder, own)))
