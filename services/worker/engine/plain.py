"""The plain way to compute a step: torch operations, one after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.domain.plan import Slice
from services.worker.engine.batch import make_batch
from services.worker.engine.cache import KVCache
from services.worker.engine.compute import Times
from services.worker.engine.model import Decoder
from services.worker.engine.sequences import SequenceState


class PlainCompute:
    """See `Compute` for the contract."""

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.num_blocks = cache.num_blocks
        self.collectives = model.head.collectives
        self.times = Times()
        self._model = model
        self._cache = cache
        self._windows = frozenset(model.config.windows)

    def forward(self, slices: Sequence[Slice], states: Sequence[SequenceState]) -> Tensor | None:
        """See `Compute`."""
        with torch.inference_mode():
            return self._model.forward(make_batch(slices, states, self._windows), self._cache)
