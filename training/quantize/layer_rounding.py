"""Rounds one layer: each unit in the way that changes its outputs least, then all of them by learning."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import NormWeights
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.model import DecoderLayer
from services.worker.engine.plain.placement import CPU
from training.quantize.bit_plan import matrix_bytes
from training.quantize.calibration import Calibration, RoundedSource
from training.quantize.candidates import Moments, round_best
from training.quantize.gptq import gptq
from training.quantize.grids import Codes, Grid
from training.quantize.layer_fit import FitStart, LayerFit
from training.quantize.layer_units import Unit, UnitName, stored_names, stored_rows
from training.quantize.output_files import as_stored
from training.quantize.packing import packed, unpacked


class LayerRounding:
    """Rounds a layer.

    Args:
        source: The weights; those that were replaced are read so.
        grids: Of each unit.
    """

    def __init__(
        self,
        source: RoundedSource,
        config: ModelConfig,
        index: int,
        units: list[Unit],
        grids: Mapping[UnitName, Grid],
    ) -> None:
        self._source, self._located = source, source.tensors
        self._config, self._index = config, index
        self._units, self._grids = units, grids

    def round(self, moments: Mapping[UnitName, Moments]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors that are written, and what is reported of each unit."""
        written: dict[str, Tensor] = {}
        facts: dict[str, Any] = {}
        row_factors: dict[str, Tensor] = {}
        for unit in self._units:
            names = stored_names(unit, self._located)
            scalable = unit.norm is not None or self._own_rows(unit)
            weights = [self._weight(name) for name in names]
            rounded = round_best(weights, moments[unit.name], self._grids[unit.name], scalable=scalable)
            for name, codes in zip(names, rounded.codes, strict=True):
                kept = codes
                if name in row_factors:  # exact: the factors are powers of two
                    scales = codes.scales.float() / row_factors[name][:, None]
                    kept = replace(codes, scales=scales.to(codes.scales.dtype))
                written |= packed(name.removesuffix(".weight"), kept)
            if rounded.factors is not None:
                if unit.norm is not None:
                    written |= self._divided_norm(unit.norm, rounded.factors)
                else:
                    assert unit.rows is not None
                    view = self._located[unit.rows].view
                    factors = torch.ones(view.stored_shape[0])
                    factors[stored_rows(view)] = rounded.factors
                    row_factors[view.stored] = factors
            facts[unit.name] = {
                "way": rounded.way, "bits": self._grids[unit.name].bits,
                "errors": {mode: round(error, 9) for mode, error in rounded.errors.items()},
            }  # fmt: skip
        return written, facts

    def _own_rows(self, unit: Unit) -> bool:
        """Whether the rows before a unit can take factors."""
        if unit.rows is None:
            return False
        view = self._located[unit.rows].view
        return view.index is None and not view.transposed and view.pairs is None

    def _divided_norm(self, norm: str, factors: Tensor) -> dict[str, Tensor]:
        """Return a norm's tensors divided by factors."""
        found = {}
        for suffix in ("weight", "bias"):
            located = self._located.get(f"{norm}.{suffix}")
            if located is not None:
                stored = located.view.stored
                found[stored] = as_stored(
                    self._source.read(f"{norm}.{suffix}") / factors, located.stored.kind
                )
        return found

    def learn(self, calibration: Calibration, tensors: dict[str, Tensor], steps: int) -> dict[str, float]:
        """Learn the layer and change its tensors; return its errors before and after.

        Args:
            calibration: With the targets after the layer.
            tensors: As they are written, which the source has already.
        """
        codes, parts, norms = dict[str, Codes](), dict[Any, Any](), dict[str, NormWeights]()
        config = self._config.layers[self._index]
        for unit in self._units:
            for name in stored_names(unit, self._located):
                codes[name] = unpacked(name.removesuffix(".weight"), tensors, self._grids[unit.name])
            views = [self._located[name].view for name in unit.linears]
            parts[unit.name] = [(view.stored, stored_rows(view)) for view in views]
            if unit.norm is not None:
                name = unit.norm.rpartition(".")[2]
                norms[name] = self._source.load_norm(unit.norm, getattr(config, name))
        layer = DecoderLayer(self._source, self._config, self._index, CPU)
        start = FitStart(codes=codes, parts=parts, norms=norms)
        fit = LayerFit(layer, self._index, start).learn(calibration, steps)
        for name, one in fit.codes.items():
            tensors |= packed(name.removesuffix(".weight"), one)
        for name, norm in fit.norms.items():
            located = self._located[f"model.layers.{self._index}.{name}.weight"]
            tensors[located.view.stored] = as_stored(norm.weight, located.stored.kind)
        return {"start": round(fit.start, 9), "end": round(fit.end, 9)}

    def num_bytes(self) -> int:
        """Return what the matrices take."""
        found = 0
        for unit in self._units:
            for name in stored_names(unit, self._located):
                outputs, inputs = self._source.checkpoint.table.tensors[name].shape
                found += matrix_bytes(outputs, inputs, self._grids[unit.name])
        return found

    def probe(self, moments: Mapping[UnitName, Moments]) -> None:
        """Let the layer be computed with matrices that GPTQ rounds."""
        tensors: dict[str, Tensor] = {}
        for unit in self._units:
            for name in stored_names(unit, self._located):
                codes = gptq(self._weight(name), moments[unit.name].fit, self._grids[unit.name])
                tensors |= packed(name.removesuffix(".weight"), codes)
        self.replace_weights(tensors)

    def replace_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the layer be computed with what is written."""
        canonical: dict[str, list[str]] = {}
        for name, located in self._located.items():
            canonical.setdefault(located.view.stored, []).append(name)
        for unit in self._units:
            for stored in stored_names(unit, self._located):
                values = unpacked(stored.removesuffix(".weight"), tensors, self._grids[unit.name]).values()
                for name in canonical[stored]:
                    self._source.replaced[name] = values[stored_rows(self._located[name].view)]
        for stored, tensor in tensors.items():
            for name in canonical.get(stored, ()):
                self._source.replaced[name] = tensor.float()

    def _weight(self, name: str) -> Tensor:
        checkpoint = self._source.checkpoint
        return checkpoint.read_tensor(name, checkpoint.table.tensors[name].shape)
