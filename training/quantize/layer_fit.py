"""Learns the codes, scales and norms of one layer, so that its outputs come close to those of the original.

The layer's inputs are those of the quantized model, its targets the outputs of the original on its own
inputs. So a layer also makes up for errors of those before it. BRECQ (Li et al., 2021) learns block by block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.config.layer import NormConfig
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.mlp import Mlp
from services.worker.engine.plain.layers.norms import Norm
from services.worker.engine.plain.model import DecoderLayer
from training.quantize.calibration import Calibration
from training.quantize.grids import Codes
from training.quantize.layer_units import UnitName
from training.quantize.learned_codes import LearnedCodes

_BATCH = 2  # windows of a step
# step sizes at the start, from which they go down to zero: in codes, and in logarithms
_CODES_RATE, _SCALES_RATE = 0.04, 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStart:
    """What is learned from.

    Attributes:
        codes: Of each stored matrix.
        parts: The matrices of each unit, one after the other: name, and which of its rows.
        norms: Weights of the norms that may change, by `input_norm` and `mlp_norm`.
    """

    codes: Mapping[str, Codes]
    parts: Mapping[UnitName, Sequence[tuple[str, list[int]]]]
    norms: Mapping[str, NormWeights]


@dataclass(frozen=True, slots=True)
class Fit:
    """What was learned.

    Attributes:
        codes: Of each stored matrix.
        start: Mean square of the errors of the outputs, as a share of the outputs', on windows that were not
            learned from, before.
        end: The same after it; if it is not less, the codes and norms are those of the start.
    """

    codes: Mapping[str, Codes]
    norms: Mapping[str, NormWeights]
    start: float
    end: float


class LayerFit:
    """Learns one layer.

    Args:
        layer: With the quantized weights; its linears and norms are replaced.
    """

    def __init__(self, layer: DecoderLayer, index: int, start: FitStart) -> None:
        self._layer, self._index, self._start = layer, index, start
        self._dtype = torch.bfloat16 if _has_bf16() else torch.float32
        self._learned = {name: LearnedCodes(codes) for name, codes in start.codes.items()}
        self._logs = {
            name: torch.zeros_like(norm.weight).requires_grad_() for name, norm in start.norms.items()
        }
        assert isinstance(layer.mlp, Mlp)
        attention, mlp = layer.attention, layer.mlp
        attention.qkv = qkv = _Column(attention.qkv)  # type: ignore[union-attr]
        attention.output = output = _Row(attention.output)
        mlp.gate_up, mlp.down = gate_up, down = _Column(mlp.gate_up), _Row(mlp.down)
        self._linears: dict[UnitName, _Column | _Row] = {
            "qkv": qkv, "output": output, "gate_up": gate_up, "down": down,
        }  # fmt: skip

    def learn(self, calibration: Calibration, steps: int) -> Fit:
        """Learn from a calibration's windows, whose targets are those after the layer."""
        fitted, checked = (~calibration.checked).nonzero().flatten(), calibration.checked.nonzero().flatten()
        if not len(checked):
            checked = fitted
        before = self.error_of(calibration, checked)
        chance = torch.Generator().manual_seed(self._index)
        shifts = [one.shifts for one in self._learned.values()]
        scales = [one.logs for one in self._learned.values()]
        optimizer = torch.optim.Adam(
            [
                {"params": shifts, "lr": _CODES_RATE},
                {"params": [*scales, *self._logs.values()], "lr": _SCALES_RATE},
            ],
            betas=(0.9, 0.99),
        )
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        for _ in range(steps):
            rows = fitted[torch.randint(len(fitted), (_BATCH,), generator=chance)]
            optimizer.zero_grad()
            # normalised queries and keys are written into the tensor that they were computed from
            with torch.autograd.graph.allow_mutation_on_saved_tensors():
                self._replace_weights()
                self._loss(calibration, rows).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            decay.step()
        after = self.error_of(calibration, checked)
        if not after < before:
            return Fit(self._start.codes, self._start.norms, before, before)
        codes = {name: one.rounded() for name, one in self._learned.items()}
        with torch.no_grad():
            norms = {name: self._norm(name) for name in self._start.norms}
        return Fit(codes, norms, before, after)

    def error_of(self, calibration: Calibration, rows: Tensor) -> float:
        """Return the mean error of the layer as it is now, over these windows."""
        with torch.no_grad():
            self._replace_weights()
            return sum(float(self._loss(calibration, rows[at : at + 1])) for at in range(len(rows))) / len(
                rows
            )

    def _loss(self, calibration: Calibration, rows: Tensor) -> Tensor:
        """The mean square of errors over that of the outputs, for each token, and their mean."""
        targets = calibration.targets[rows]
        found = calibration.run(self._layer, self._index, calibration.hidden[rows])
        return ((found - targets).square().mean(-1) / targets.square().mean(-1)).mean()

    def _replace_weights(self) -> None:
        layer = self._layer
        matrices = {name: one.values(self._dtype) for name, one in self._learned.items()}
        for unit, parts in self._start.parts.items():
            self._linears[unit].weight = torch.cat([_rows(matrices[name], own) for name, own in parts])
        for name in self._start.norms:
            config: NormConfig = getattr(layer.config, name)
            setattr(layer, name, Norm(config, self._norm(name)))

    def _norm(self, name: str) -> NormWeights:
        start = self._start.norms[name]
        return NormWeights(weight=start.weight * self._logs[name].exp(), bias=start.bias)


class _Column(ColumnParallelLinear):
    """Multiplies in the type of its weight, which is another one in each step."""

    def __init__(self, linear: ColumnParallelLinear) -> None:
        super().__init__(linear.weight, linear.bias, linear.name)

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        return _product(hidden, self.weight, self.bias)


class _Row(RowParallelLinear):
    """The same, of a linear whose inputs could be cut."""

    def __init__(self, linear: RowParallelLinear) -> None:
        super().__init__(linear.weight, linear.bias, linear.collectives, linear.name)

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        return _product(hidden, self.weight, self.bias)


def _product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found = F.linear(hidden.to(weight.dtype), weight).to(hidden.dtype)
    return found if bias is None else found + bias


def _rows(matrix: Tensor, rows: list[int]) -> Tensor:
    return matrix if rows == list(range(len(matrix))) else matrix[rows]


def _has_bf16() -> bool:
    """Whether the processor multiplies bf16, which is several times as fast as fp32."""
    path = Path("/proc/cpuinfo")
    return path.exists() and "avx512_bf16" in path.read_text(encoding="utf-8")
