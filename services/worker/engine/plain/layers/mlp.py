"""Dense feed-forward layers: gated or not, with any activation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import MlpWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import MlpConfig
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.norms import SplitNorm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda values: F.gelu(values, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda values: F.relu(values).square(),
}
# of gpt-oss
CLAMP, SHARPNESS = 7.0, 1.702


def activate(config: MlpConfig, projected: Tensor) -> Tensor:
    """Inner features, [..., inner], of gate and up, [..., 2 * inner], or of up alone, [..., inner]."""
    if not config.gated:
        return ACTIVATIONS[config.activation](projected)
    gate, up = projected.chunk(2, dim=-1)
    if config.activation == "clamped_swiglu":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (up + 1) * gate * torch.sigmoid(SHARPNESS * gate)
    return ACTIVATIONS[config.activation](gate) * up


class Mlp:
    """A feed-forward layer, of which each rank has some inner features."""

    def __init__(self, weights: MlpWeights, config: MlpConfig, collectives: Collectives) -> None:
        self.config = config
        self.gate_up = ColumnParallelLinear(decoded(weights.gate_up), weights.gate_up_bias, "gate_up")
        self.down = RowParallelLinear(decoded(weights.down), weights.down_bias, collectives, "down")
        self.inner_norm = (
            SplitNorm(config.inner_norm, weights.inner_norm, config.inner, collectives)
            if config.inner_norm is not None and weights.inner_norm is not None
            else None
        )

    def inner(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        """[tokens, hidden] -> [tokens, inner features of this rank]."""
        inner = activate(self.config, self.gate_up(hidden, adapters))
        return inner if self.inner_norm is None else self.inner_norm(inner)

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self.down(self.inner(hidden, adapters), adapters)
