"""Runs calibration text through the layers of a model, one layer at a time, and sums up what its linears get.

The layers are those of the plain path. A layer's weights are in memory only while it runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.weight_loader import load_embedding, load_positions
from services.worker.engine.checkpoint.weight_source import WHOLE, WeightSource
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.plain.batch import AttentionMetadata, PlainBatch, PrefillChunk
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.mlp import Mlp
from services.worker.engine.plain.model import DecoderLayer
from services.worker.engine.plain.placement import CPU
from services.worker.engine.plain.plain_cache import PlainLayerCache
from services.worker.engine.plain.rope import RotaryEmbedding
from services.worker.model import Model
from services.worker.rank_protocol.plan import BLOCK_SIZE
from training.quantize.candidates import Moments
from training.quantize.layer_units import UnitName

_AT_ONCE = 2048  # tokens of a forward pass
_CHECK = 8  # every eighth window is left out of the fit


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
        model: Whose tokenizer is used.
        text: A UTF-8 file; None: the end of the prose that ships with Python, whose beginning
            `ryz bench quality` scores.
        count: Of windows.
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

    Args:
        source: The weights.
        config: The model's shape.
        windows: Token ids, [windows, length].
    """

    def __init__(self, source: WeightSource, config: ModelConfig, windows: Tensor) -> None:
        self._config = config
        self._windows = windows
        count, length = windows.shape
        self._positions = torch.arange(length)
        table = decoded(load_embedding(source, config))
        self.hidden = torch.nn.functional.embedding(windows, table) * config.embedding_scale
        positions = load_positions(source, config)
        if positions is not None:
            self.hidden = self.hidden + positions[self._positions]
        ropes = {layer.attention.rope for layer in config.layers} - {None}
        self._rotaries = {rope: RotaryEmbedding(rope, config.context_length) for rope in ropes if rope}
        self._checked = torch.arange(count) % _CHECK == _CHECK - 1
        if not bool(self._checked.any()):
            self._checked[-1] = count > 1

    def measure(self, source: WeightSource, index: int) -> dict[UnitName, Moments]:
        """Return the second moments of the inputs of a layer's units; the hidden states stay as they are."""
        layer = DecoderLayer(source, self._config, index, CPU)
        assert isinstance(layer.mlp, Mlp)
        sums = {name: _Sums() for name in ("qkv", "output", "gate_up", "down")}
        layer.attention.qkv = _Column(layer.attention.qkv, sums["qkv"])  # type: ignore[union-attr]
        layer.attention.output = _Row(layer.attention.output, sums["output"])
        layer.mlp.gate_up = _Column(layer.mlp.gate_up, sums["gate_up"])
        layer.mlp.down = _Row(layer.mlp.down, sums["down"])
        for checked in (False, True):
            for one in sums.values():
                one.checked = checked
            for _ in self._run(layer, index, self._checked == checked):
                pass
        found: dict[UnitName, Moments] = {}
        for name in ("qkv", "output", "gate_up", "down"):
            one = sums[name]
            fit = one.sums[False]
            assert fit is not None
            check = one.sums[True]
            found[name] = Moments(fit, fit if check is None else check)
        return found

    def advance(self, source: WeightSource, index: int) -> None:
        """Pass the hidden states through a layer."""
        layer = DecoderLayer(source, self._config, index, CPU)
        for rows, out in self._run(layer, index, torch.ones(len(self._windows), dtype=torch.bool)):
            self.hidden[rows] = out

    def _run(self, layer: DecoderLayer, index: int, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield windows and their hidden states after a layer."""
        config = self._config
        length = self._windows.shape[1]
        window = config.layers[index].attention.window
        kv_heads = config.num_kv_heads
        for rows in torch.split(wanted.nonzero().flatten(), max(1, _AT_ONCE // length)):
            tokens = len(rows) * length
            cache = PlainLayerCache(-(-tokens // BLOCK_SIZE), kv_heads, config.head_dim)
            chunks = [
                PrefillChunk(at * length, (at + 1) * length, length, None, _mask(length, window))
                for at in range(len(rows))
            ]
            positions = self._positions.repeat(len(rows))
            batch = PlainBatch(
                token_ids=self._windows[rows].flatten(),
                positions=positions,
                slots=torch.arange(tokens),
                sample_rows=torch.empty(0, dtype=torch.int64),
                attention_metadata={window: AttentionMetadata([], chunks)},
            )
            rotations = {rope: rotary.at(positions) for rope, rotary in self._rotaries.items()}
            with torch.inference_mode():
                out = layer(self.hidden[rows].flatten(0, 1), rotations, batch, cache)
            yield rows, out.view(len(rows), length, -1)


def _mask(length: int, window: int) -> Tensor | None:
    """What is added to the scores of a sequence from its first token; None for a causal mask."""
    if not 0 < window < length:
        return None
    at = torch.arange(length)
    distance = at[:, None] - at
    return torch.zeros(length, length).masked_fill((distance < 0) | (distance >= window), -torch.inf)


class _Sums:
    """Second moments of the inputs of a linear: of those for the fit, and of those that are checked."""

    def __init__(self) -> None:
        self.checked = False
        self.sums: dict[bool, Tensor | None] = {False: None, True: None}

    def add(self, inputs: Tensor) -> None:
        found = inputs.T @ inputs
        so_far = self.sums[self.checked]
        self.sums[self.checked] = found if so_far is None else so_far.add_(found)


class _Column(ColumnParallelLinear):
    def __init__(self, linear: ColumnParallelLinear, sums: _Sums) -> None:
        super().__init__(linear.weight, linear.bias)
        self._sums = sums

    def __call__(self, hidden: Tensor) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden)


class _Row(RowParallelLinear):
    def __init__(self, linear: RowParallelLinear, sums: _Sums) -> None:
        super().__init__(linear.weight, linear.bias, linear.collectives)
        self._sums = sums

    def __call__(self, hidden: Tensor) -> Tensor:
        self._sums.add(hidden)
        return super().__call__(hidden)
