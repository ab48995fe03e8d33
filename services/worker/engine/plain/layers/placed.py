"""Moves a layer's weights to the device and type in which a rank computes."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.plain.placement import Placement

# computed in fp32 everywhere
_FP32 = ("router", "router_bias", "selection_bias", "sinks")

T = TypeVar("T")


def placed(weights: T, placement: Placement) -> T:
    """Weights of a layer, or a part of them, there: matrices and biases in its type, norms in fp32."""
    moved: dict[str, Any] = {}
    for field in fields(weights):  # type: ignore[arg-type]
        value = getattr(weights, field.name)
        if isinstance(value, Tensor):
            keeps = isinstance(weights, NormWeights) or field.name in _FP32
            moved[field.name] = value.to(placement.device) if keeps else placement.move(value)
        elif is_dataclass(value):
            moved[field.name] = placed(value, placement)
    return replace(weights, **moved)  # type: ignore[type-var]
