"""Quantizes a model directory layer by layer: calibrate, round each unit in the best way, write, go on.

The calibration's hidden states go through the layers as they were quantized, so a layer is fitted to what it
will get. Weights of one layer are in memory at a time.
"""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.json_fields import ModelError, read_json
from services.worker.engine.config.read_config import read_config
from services.worker.model_files.json_files import MAX_CONFIG_BYTES
from services.worker.model_files.load_model import load_model
from training.quantize.bit_plan import Key, UnitCost, choose_bits, matrix_bytes
from training.quantize.calibration import Calibration, RoundedSource, calibration_windows
from training.quantize.grids import Grid
from training.quantize.layer_rounding import LayerRounding
from training.quantize.layer_units import UnitName, layer_units, stored_names
from training.quantize.output_files import OutputFiles, as_stored
from training.quantize.packing import quantization_config

_SCALES = {"F16": torch.float16, "BF16": torch.bfloat16}
_MORE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizePlan:
    """What is made of a model.

    Attributes:
        model: Hugging Face directory with float weights.
        bits: Of a code, 4 or 8; with a size the fewest.
        group: Inputs that share a scale.
        symmetric: Codes have no zero points.
        num_bytes: Of all weights together; units get 8 bits until they take so much. None: see `mean_bits`.
        mean_bits: Without a number of bytes: of a quantized weight on average, with its share of scales and
            zero points. None, or no more than all take with `bits`: all have `bits`.
        text: Calibration text; None: prose that ships with Python.
        samples: Windows of it.
        length: Tokens of a window.
        steps: Of learning for each layer; 0: none.
    """

    model: Path
    bits: int = 4
    group: int = 32
    symmetric: bool = False
    num_bytes: int | None = None
    mean_bits: float | None = None
    text: Path | None = None
    samples: int = 32
    length: int = 512
    steps: int = 40


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of the work: `done` of `total`, and what was reported of the layer that is ready, if one is."""

    what: str
    done: int
    total: int
    facts: dict[str, Any] | None = None


class Quantizer:
    """Works off a plan. A context manager, because the weight files are open meanwhile.

    Raises:
        ModelError: The model cannot be quantized, or a file is damaged.
    """

    def __init__(self, plan: QuantizePlan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._raw = read_json(plan.model / "config.json", MAX_CONFIG_BYTES)
        if "quantization_config" in self._raw:
            raise ModelError(f"{plan.model} is quantized already; start from the weights that it was made of")
        self._config = read_config(plan.model)
        self._units = [layer_units(self._config, index) for index in range(self._config.num_layers)]

    def __enter__(self) -> Self:
        checkpoint = self._stack.enter_context(open_checkpoint(self._plan.model))
        source = open_source(checkpoint, self._config, SingleRank())
        self._checkpoint, self._located = checkpoint, source.tensors
        self._source = RoundedSource(checkpoint, source.collectives, source.tensors)
        self._original = source
        kinds = {
            self._located[name].stored.kind
            for units in self._units
            for unit in units
            for name in unit.linears
        }
        scale = _SCALES["BF16"] if kinds == {"BF16"} else _SCALES["F16"]
        self._grid = Grid(
            bits=self._plan.bits, group=self._plan.group, symmetric=self._plan.symmetric, scale_type=scale
        )
        for units in self._units:
            for unit in units:
                for name in stored_names(unit, self._located):
                    self._check(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, output: Path, progress: Callable[[Progress], None]) -> None:
        """Write the quantized model.

        Args:
            output: A directory, new or with the parts of an interrupted run of the same plan.
            progress: Called before each step, and after each layer.

        Raises:
            ModelError: The calibration text is too short, the size is too small, or a file cannot be read.
        """
        plan, layers = self._plan, self._config.num_layers
        windows = calibration_windows(load_model(plan.model, "model"), plan.text, plan.samples, plan.length)
        files = OutputFiles(output, self._identity(windows))
        num_bytes = self._num_bytes()
        total = layers * (1 if num_bytes is None else 2)
        bits = dict[Key, int]() if num_bytes is None else files.bits()
        if bits is None:
            assert num_bytes is not None
            bits = self._choose_bits(windows, num_bytes, total, progress)
            files.write_bits(bits)
        calibration = Calibration(self._source, self._config, windows)
        grids: dict[str, Grid] = {}
        for index in range(layers):
            done = total - layers + index
            progress(Progress(f"layer {index + 1} of {layers}", done, total))
            given: dict[UnitName, Grid] = {
                unit.name: replace(self._grid, bits=bits.get((index, unit.name), plan.bits))
                for unit in self._units[index]
            }
            rounding = LayerRounding(self._source, self._config, index, self._units[index], given)
            if plan.steps:
                calibration.aim(self._original, index)
            found = files.layer(index)
            if found is None:
                tensors, units = rounding.round(calibration.measure(self._source, index))
                facts: dict[str, Any] = {"units": units}
                if plan.steps:
                    rounding.replace_weights(tensors)
                    facts["fit"] = rounding.learn(calibration, tensors, plan.steps)
                files.write_layer(index, tensors, facts)
                found = tensors, facts
            rounding.replace_weights(found[0])
            for unit in self._units[index]:
                for name in stored_names(unit, self._located):
                    grids[name.removesuffix(".weight")] = given[unit.name]
            calibration.advance(self._source, index)
            self._source.replaced.clear()
            progress(Progress(f"layer {index + 1} of {layers}", done + 1, total, found[1]))
        self._finish(files, output, grids)

    def _identity(self, windows: Tensor) -> dict[str, Any]:
        plan = self._plan
        hashed = hashlib.sha256(windows.numpy().tobytes())
        for name in sorted(self._checkpoint.table.tensors):
            stored = self._checkpoint.table.tensors[name]
            hashed.update(f"{name} {stored.kind} {stored.shape}".encode() + stored.samples())
        return {
            "bits": plan.bits, "group": plan.group, "symmetric": plan.symmetric, "steps": plan.steps,
            "num_bytes": self._num_bytes(), "sha256": hashed.hexdigest(),
        }  # fmt: skip

    def _check(self, name: str) -> None:
        stored, group = self._checkpoint.table.tensors[name], self._plan.group
        if stored.shape[1] % group or group % 8:
            raise ModelError(
                f"tensor {name} has {stored.shape[1]} inputs, which --group {group} does not divide: choose "
                "a multiple of 8 that does, for instance 32"
            )

    def _weight(self, name: str) -> Tensor:
        return self._checkpoint.read_tensor(name, self._checkpoint.table.tensors[name].shape)

    def _choose_bits(
        self, windows: Tensor, num_bytes: int, total: int, progress: Callable[[Progress], None]
    ) -> dict[Key, int]:
        """Measure what the outputs of layers lose by each unit alone, and share out the bytes."""
        left, costs = num_bytes - self._float_bytes(), list[UnitCost]()
        calibration = Calibration(self._source, self._config, windows)
        steps = sorted({self._plan.bits, _MORE_BITS})
        for index, units in enumerate(self._units):
            progress(Progress(f"measuring layer {index + 1} of {len(self._units)}", index, total))
            moments = calibration.measure(self._source, index)
            calibration.aim(self._source, index)
            for unit in units:
                cost = UnitCost((index, unit.name), dict.fromkeys(steps, 0), dict.fromkeys(steps, 0.0))
                for bits in steps:
                    grid = replace(self._grid, bits=bits)
                    rounding = LayerRounding(self._source, self._config, index, [unit], {unit.name: grid})
                    cost.num_bytes[bits] = rounding.num_bytes()
                    if bits < _MORE_BITS:  # of which the loss is next to nothing
                        rounding.probe(moments)
                        cost.loss[bits] = calibration.error(self._source, index)
                        self._source.replaced.clear()
                costs.append(cost)
            calibration.hidden.copy_(calibration.targets)
        return choose_bits(costs, left)

    def _num_bytes(self) -> int | None:
        """Return the bytes of all weights that units may take; None if there is nothing to share out."""
        plan = self._plan
        if plan.num_bytes is not None or plan.mean_bits is None or plan.bits == _MORE_BITS:
            return plan.num_bytes
        shapes = [
            self._checkpoint.table.tensors[name].shape
            for units in self._units
            for unit in units
            for name in stored_names(unit, self._located)
        ]
        least = sum(matrix_bytes(outputs, inputs, self._grid) for outputs, inputs in shapes)
        most = int(sum(outputs * inputs for outputs, inputs in shapes) * plan.mean_bits / 8)
        return self._float_bytes() + most if most > least else None

    def _float_bytes(self) -> int:
        quantized = {
            name for units in self._units for unit in units for name in stored_names(unit, self._located)
        }
        tensors = self._checkpoint.table.tensors
        return sum(one.end - one.begin for name, one in tensors.items() if name not in quantized)

    def _finish(self, files: OutputFiles, output: Path, grids: dict[str, Grid]) -> None:
        quantized = {f"{module}.weight" for module in grids}
        rest = {}
        written: set[str] = set()
        for index in range(self._config.num_layers):
            found = files.layer(index)
            assert found is not None  # all layers are done
            written |= set(found[0])
        for name, stored in self._checkpoint.table.tensors.items():
            if name not in quantized and name not in written:
                rest[name] = as_stored(self._weight(name), stored.kind)
        heads = [] if self._config.tied_embeddings else ["lm_head"]
        config = {**self._raw, "quantization_config": quantization_config(grids, heads or ["lm_head"])}
        files.finish(self._plan.model, rest, config, self._config.num_layers)
