"""Computes a step in torch operators, on a CPU or a GPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.engine.config.layer_config import ExpertsConfig
from services.worker.engine.kv_transfer.kv_blocks import PlainBlocks
from services.worker.engine.plain.batch import make_batch
from services.worker.engine.plain.cuda_graphs import DecodeGraphs, GraphCapture
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.placement import CPU
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import CacheBlocks, ComputeTimes
from services.worker.engine.rank.prompt_outputs import PromptOutputs
from services.worker.engine.rank.rank_progress import Progress
from services.worker.engine.rank.sequences import SequenceState
from services.worker.rank_protocol.plan import ScheduledChunk
from services.worker.rank_protocol.sliding_pool import PoolSizes

_LOGITS = 256  # rows of logits that are made at a time


class PlainCompute:
    """See `Compute` for the contract.

    Args:
        model: This rank's share.
        cache: On the same device as the model.
        capture: Records decode steps for replay; None to run every step op by op.
    """

    def __init__(self, model: Decoder, cache: KVCache, capture: GraphCapture | None = None) -> None:
        self.sizes = PoolSizes(cache.num_blocks)
        self.collectives = model.head.collectives
        rank, world = self.collectives.rank, self.collectives.world
        self.blocks: CacheBlocks = PlainBlocks(cache, model.config, rank, world)
        self.times = ComputeTimes()
        self.prompts = PromptOutputs()
        self._model = model
        self._cache = cache
        self._windows = frozenset(model.config.windows)
        # which experts are computed depends on the tokens, so steps with experts cannot be recorded
        routed = any(isinstance(layer.mlp, ExpertsConfig) for layer in model.config.layers)
        self._graphs = None if capture is None or routed else DecodeGraphs(model, cache, capture)
        self.progress = Progress()

    @property
    def progress(self) -> Progress:
        """See `Compute`."""
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._progress = progress
        self._model.after_layer = progress.beat

    def forward(self, slices: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """See `Compute`."""
        with torch.inference_mode():
            plain = any(state.wants_rows for state in states)
            if self._graphs is not None and not plain and self._graphs.can_replay(slices):
                logits = self._graphs.forward(slices, states)
            else:
                batch = make_batch(slices, states, self._windows)
                if self._model.placement != CPU:
                    batch = batch.to(self._model.placement)
                hidden = self._model.hidden_states(batch, self._cache)
                if batch.prompt_rows is not None:
                    self._take_prompts(self._model.norm(hidden[batch.prompt_rows]), slices, states)
                rows = batch.sample_rows
                logits = self._model.head(self._model.norm(hidden[rows])) if len(rows) else None
            # the sampler computes on the CPU: one copy per step
            return None if logits is None else logits.to(torch.float32).cpu()

    def _take_prompts(
        self, rows: Tensor, slices: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> None:
        """Gives rows [rows, hidden] to `prompts` on rank 0, with logits of a few at a time."""
        begin = 0
        for part, state in zip(slices, states, strict=True):
            positions = state.prompt_rows(part.start, part.num_tokens) if state.wants_rows else range(0)
            while positions:
                now, positions = positions[:_LOGITS], positions[_LOGITS:]
                hidden = rows[begin : begin + len(now)]
                begin += len(now)
                logits = None
                if state.embedding is None:  # all ranks gather
                    logits = self._model.head(hidden)
                    logits = None if logits is None else logits.to(torch.float32).cpu()
                if self.collectives.rank == 0:
                    self.prompts.take_rows(state, now.start, hidden.to(torch.float32).cpu(), logits)
