"""Runs windows of text through one decoder layer of the plain path, with gradients where they are wanted."""

import torch
from torch import Tensor

from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.batch import AttentionMetadata, PlainBatch, PrefillChunk
from services.worker.engine.plain.model import DecoderLayer
from services.worker.engine.plain.plain_cache import PlainLayerCache
from services.worker.engine.plain.rope import RotaryEmbedding


class LayerPass:
    """Runs windows of one length.

    Args:
        length: Of a window, in tokens.
    """

    def __init__(self, config: ModelConfig, length: int) -> None:
        self._config = config
        self._length = length
        ropes = {layer.attention.rope for layer in config.layers} - {None}
        self._rotaries = {rope: RotaryEmbedding(rope, config.context_length) for rope in ropes if rope}
        self._cache = _NoCache()

    def __call__(self, layer: DecoderLayer, index: int, hidden: Tensor) -> Tensor:
        """Return the hidden states after a layer.

        Args:
            hidden: Before it, fp32 [windows, length, hidden].
        """
        count, length = hidden.shape[:2]
        window = self._config.layers[index].attention.window
        mask = _mask(length, window)
        chunks = [PrefillChunk(at * length, (at + 1) * length, length, None, mask) for at in range(count)]
        positions = torch.arange(length).repeat(count)
        batch = PlainBatch(
            token_ids=torch.empty(0, dtype=torch.int64),
            positions=positions,
            slots=positions,
            sample_rows=torch.empty(0, dtype=torch.int64),
            attention_metadata={window: AttentionMetadata([], chunks)},
        )
        rotations = {rope: rotary.at(positions) for rope, rotary in self._rotaries.items()}
        return layer(hidden.flatten(0, 1), rotations, batch, self._cache).view(count, length, -1)


class _NoCache(PlainLayerCache):
    """Keeps nothing: a window is computed whole, so no token's keys are read from a cache."""

    def __init__(self) -> None:
        self.kernels = None

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """See `PlainLayerCache`."""


def _mask(length: int, window: int) -> Tensor | None:
    """What is added to the scores of a sequence from its first token; None for a causal mask."""
    if not 0 < window < length:
        return None
    at = torch.arange(length)
    distance = at[:, None] - at
    return torch.zeros(length, length).masked_fill((distance < 0) | (distance >= window), -torch.inf)
