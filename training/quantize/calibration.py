"""Runs calibration text through the layers of a model, one layer at a time, and sums up what its linears get.

The layers are those of the plain path. A layer's weights are in memory only while it runs.
"""

from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.weight_loader import load_embedding, load_positions
from services.worker.engine.checkpoint.weight_source import WHOLE, WeightSource
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.mlp import Mlp
from services.worker.engine.plain.model import DecoderLayer
from services.worker.engine.plain.placement import CPU
from services.worker.model_files.model import Model
from training.quantize.candidates import Moments
from training.quantize.layer_pass import LayerPass
from training.quantize.layer_units import UnitName

_AT_ONCE = 2048  # tokens of a forward pass
_CHECK = 8  # every eighth window is left out of the fit


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
        super().__init__(linear.weight, linear.bias, linear.name)
        self._sums = sums

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden, adapters)


class _Row(RowParallelLinear):
    def __init__(self, linear: RowParallelLinear, sums: InputSums) -> None:
        super().__init__(linear.weight, linear.bias, linear.collectives, linear.name)
        self._sums = sums

    def __call__(self, hidden: Tensor, adapters: LayerAdapters | None = None) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden, adapters)


@dataclass(frozen=True, slots=True)
class RoundedSource(WeightSource):
    """The weights of a model, some of them replaced.

    Attributes:
        replaced: Whole tensors by canonical name, as they are stored, fp32.
    """

    replaced: dict[str, Tensor] = field(default_factory=dict)

    def read_into(self, out: Tensor, name: str, rows: slice = WHOLE, columns: slice = WHOLE) -> None:
        """See `WeightSource`."""
        found = self.replaced.get(name)
        if found is None:
            WeightSource.read_into(self, out, name, rows, columns)
        else:
            out.copy_(found[rows] if found.dim() == 1 else found[rows, columns])


def calibration_windows(model: Model, text: Path | None, count: int, length: int) -> Tensor:
    """Return token windows, int64 [count, length].

    Args:
        text: A UTF-8 file; None: the end of the prose that ships with Python, whose beginning
            `ryz bench quality` scores.
        length: Of each, in tokens.

    Raises:
        ModelError: The text is too short or cannot be read.
    """
    if text is None:
        prose = "\n\n".join(topics[name] for name in sorted(topics))
        prose = prose[len(prose) // 3 :]
    else:
        try:
            prose = text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{text} cannot be read as text: {error}") from error
    ids = model.tokenizer.encode(prose, add_special_tokens=False)
    if len(ids) < count * length:
        raise ModelError(
            f"the calibration text has {len(ids)} tokens, {count} windows of {length} are asked for: "
            "give a longer --text or fewer --samples"
        )
    step = len(ids) // count  # spread over the whole text
    return torch.tensor([list(ids[at * step : at * step + length]) for at in range(count)])


class Calibration:
    """The hidden states of the calibration text, which pass through one layer after the other.

    There are two streams: that of the model as it is, and that of the model as it was quantized so far.

    Args:
        windows: Token ids, [windows, length].

    Attributes:
        hidden: Of the quantized model, before the next layer, fp32 [windows, length, hidden].
        targets: Of the model as it is; after `aim` they are those after the layer.
        checked: Which windows are left out of fits, bool [windows].
    """

    def __init__(self, source: WeightSource, config: ModelConfig, windows: Tensor) -> None:
        self._config = config
        count, length = windows.shape
        self._at_once = max(1, _AT_ONCE // length)
        table = decoded(load_embedding(source, config))
        self.hidden = torch.nn.functional.embedding(windows, table) * config.embedding_scale
        positions = load_positions(source, config)
        if positions is not None:
            self.hidden = self.hidden + positions[torch.arange(length)]
        self.targets = self.hidden.clone()
        self.run = LayerPass(config, length)
        self.checked = torch.arange(count) % _CHECK == _CHECK - 1
        if not bool(self.checked.any()):
            self.checked[-1] = count > 1

    def measure(self, source: WeightSource, index: int) -> dict[UnitName, Moments]:
        """Return the second moments of the inputs of a layer's units; the hidden states stay as they are."""
        layer = DecoderLayer(source, self._config, index, CPU)
        sums = observe(layer)
        for checked in (False, True):
            for one in sums.values():
                one.checked = checked
            for rows in torch.split((self.checked == checked).nonzero().flatten(), self._at_once):
                with torch.inference_mode():
                    self.run(layer, index, self.hidden[rows])
        found: dict[UnitName, Moments] = {}
        for name, one in sums.items():
            fit, check = one.sums[False], one.sums[True]
            assert fit is not None
            found[name] = Moments(fit, fit if check is None else check)
        return found

    def error(self, source: WeightSource, index: int) -> float:
        """Return how far a layer's outputs are from the targets after it, on the windows that are checked.

        It is the mean square of a token's errors over that of its targets, on average.
        """
        layer = DecoderLayer(source, self._config, index, CPU)
        rows = self.checked.nonzero().flatten() if bool(self.checked.any()) else torch.arange(1)
        total = 0.0
        for part in torch.split(rows, self._at_once):
            with torch.inference_mode():
                found, targets = self.run(layer, index, self.hidden[part]), self.targets[part]
                shares = (found - targets).square().mean(-1) / targets.square().mean(-1)
            total += float(shares.mean(-1).sum())
        return total / len(rows)

    def aim(self, source: WeightSource, index: int) -> None:
        """Pass the targets through a layer."""
        self._pass(self.targets, source, index)

    def advance(self, source: WeightSource, index: int) -> None:
        """Pass the hidden states through a layer."""
        self._pass(self.hidden, source, index)

    def _pass(self, hidden: Tensor, source: WeightSource, index: int) -> None:
        layer = DecoderLayer(source, self._config, index, CPU)
        for rows in torch.split(torch.arange(len(hidden)), self._at_once):
            with torch.no_grad():
                hidden[rows] = self.run(layer, index, hidden[rows])
