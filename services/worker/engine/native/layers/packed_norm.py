"""The weights of a norm as the kernels read them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.config.layer import NormConfig
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.structs.rows import NormKind, NormRule

_KINDS = {"rms": NormKind.RMS, "layer": NormKind.LAYER}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNorm:
    """A norm.

    Attributes:
        weight: [padded size], or [heads, padded size] with own weights for each head.
        bias: Of the same shape.
        eps: Added to the mean square, or to the variance.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    kind: NormKind

    @property
    def stride(self) -> int:
        """Floats from the weights of a head to those of the next one; 0 if all have the same."""
        return self.weight.shape[1] if self.weight.dim() == 2 else 0


def pack_norm(config: NormConfig | None, weights: NormWeights | None) -> PackedNorm | None:
    """Copies the weights of a norm; None where a layer has none."""
    if config is None or weights is None:
        return None
    bias = None if weights.bias is None else _aligned(weights.bias)
    return PackedNorm(weight=_aligned(weights.weight), bias=bias, eps=config.eps, kind=_KINDS[config.kind])


def norm_rule(norm: PackedNorm | None) -> NormRule:
    """A norm as the kernels take it; its tensors have to live as long."""
    if norm is None:
        return NormRule()
    bias = 0 if norm.bias is None else norm.bias.data_ptr()
    return NormRule(weight=norm.weight.data_ptr(), bias=bias, eps=norm.eps, kind=norm.kind)


def _aligned(values: Tensor) -> Tensor:
    size = values.shape[-1]
    out = buffer(*values.shape[:-1], padded(size))
    return out.copy_(F.pad(values.to(torch.float32), (0, padded(size) - size)))
