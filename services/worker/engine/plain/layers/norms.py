"""Root-mean-square and layer norms, also over a dimension that is cut over the ranks; computed in fp32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import NormConfig


class Norm:
    """A norm over the last dimension.

    Args:
        weights: fp32, [size], or [heads, size] with own weights for each head.
    """

    def __init__(self, config: NormConfig, weights: NormWeights) -> None:
        self._config = config
        self._weight, self._bias = weights.weight, weights.bias
        self._shape = tuple(weights.weight.shape[-1:])
        self._half = _exact_half(config, weights)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., size], or [..., heads, size], normalised, in the same type."""
        if self._half is not None and hidden.dtype == torch.bfloat16:
            return F.rms_norm(hidden, self._shape, self._half, self._config.eps)
        values, eps = hidden.float(), self._config.eps
        # torch takes weights of the normalised dimension only
        fused = self._weight if self._weight.dim() == 1 else None
        if self._config.kind == "rms":
            normed = F.rms_norm(values, self._shape, fused, eps)
        else:
            normed = F.layer_norm(values, self._shape, fused, eps=eps)
        if fused is None:
            normed = normed * self._weight
        if self._bias is not None:
            normed = normed + self._bias
        return normed.to(hidden.dtype)


def _exact_half(config: NormConfig, weights: NormWeights) -> Tensor | None:
    """The weights in bf16, if torch has one kernel for the norm that computes in fp32 inside: on GPUs.

    None if it has none, or if the weights are not the same numbers in bf16.
    """
    weight = weights.weight
    if config.kind != "rms" or weights.bias is not None or weight.dim() > 1 or not weight.is_cuda:
        return None
    half = weight.to(torch.bfloat16)
    return half if torch.equal(half.float(), weight) else None


class SplitNorm:
    """A norm over the last dimension, of which each rank has a part.

    Args:
        weights: fp32, of this rank's part.
        size: Of the whole dimension.
        collectives: Adds up the ranks' sums, one number for each row.
        counts: Whether this rank's part is in the sums; not if a lower rank has the same one.
    """

    def __init__(
        self,
        config: NormConfig,
        weights: NormWeights,
        size: int,
        collectives: Collectives,
        counts: bool = True,
    ) -> None:
        self._config = config
        self._weights = weights
        self._size = size
        self._collectives = collectives
        self._counts = counts

    def __call__(self, hidden: Tensor) -> Tensor:
        """[rows, part of this rank] -> the same, normalised, in the same type."""
        values, weights = hidden.float(), self._weights
        if self._config.kind == "layer":
            values = values - self._mean(values)
        normed = values * (self._mean(values.square()) + self._config.eps).rsqrt() * weights.weight
        if weights.bias is not None:
            normed = normed + weights.bias
        return normed.to(hidden.dtype)

    def _mean(self, values: Tensor) -> Tensor:
        """Over the whole dimension, [rows, 1]."""
        total = values.sum(-1, keepdim=True)
        if not self._counts:
            total.zero_()
        self._collectives.all_reduce_sum(total)
        return total / self._size


def optional_norm(config: NormConfig | None, weights: NormWeights | None) -> Norm | None:
    """A norm, or None where the layer has none."""
    return None if config is None or weights is None else Norm(config, weights)
