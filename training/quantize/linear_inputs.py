"""Linears that sum up the second moments of their inputs."""

from torch import Tensor

from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.mlp import Mlp
from services.worker.engine.plain.model import DecoderLayer
from training.quantize.layer_units import UnitName


class InputSums:
    """Second moments of the inputs of a linear: of those for the fit, and of those that are checked."""

    def __init__(self) -> None:
        self.checked = False
        self.sums: dict[bool, Tensor | None] = {False: None, True: None}

    def add(self, inputs: Tensor) -> None:
        """Add inputs, [tokens, inputs]."""
        found = inputs.T @ inputs
        so_far = self.sums[self.checked]
        self.sums[self.checked] = found if so_far is None else so_far.add_(found)


def observe(layer: DecoderLayer) -> dict[UnitName, InputSums]:
    """Let the linears of a layer sum up their inputs."""
    assert isinstance(layer.mlp, Mlp)
    sums: dict[UnitName, InputSums] = {
        "qkv": InputSums(), "output": InputSums(), "gate_up": InputSums(), "down": InputSums(),
    }  # fmt: skip
    layer.attention.qkv = _Column(layer.attention.qkv, sums["qkv"])  # type: ignore[union-attr]
    layer.attention.output = _Row(layer.attention.output, sums["output"])
    layer.mlp.gate_up = _Column(layer.mlp.gate_up, sums["gate_up"])
    layer.mlp.down = _Row(layer.mlp.down, sums["down"])
    return sums


class _Column(ColumnParallelLinear):
    def __init__(self, linear: ColumnParallelLinear, sums: InputSums) -> None:
        super().__init__(linear.weight, linear.bias)
        self._sums = sums

    def __call__(self, hidden: Tensor) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden)


class _Row(RowParallelLinear):
    def __init__(self, linear: RowParallelLinear, sums: InputSums) -> None:
        super().__init__(linear.weight, linear.bias, linear.collectives)
        self._sums = sums

    def __call__(self, hidden: Tensor) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden)
