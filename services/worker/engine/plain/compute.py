"""Computes a step in torch operators, on a CPU or a GPU."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.adapters.plain_rows import HEAD_LAYER, PlainAdapter, RowAdapters, row_adapters
from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.kv_transfer.kv_blocks import PlainBlocks
from services.worker.engine.plain.batch import ReadRange
from services.worker.engine.plain.batch_builder import make_batch
from services.worker.engine.plain.cuda_graphs import DecodeGraphs, GraphCapture
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.placement import CPU
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.plain.tiles import in_tiles, make_tiles
from services.worker.engine.rank.compute import CacheBlocks, ComputeTimes, FindLikeliest, PreparedAdapter
from services.worker.engine.rank.op_spans import OpName, OpSpans
from services.worker.engine.rank.prompt_outputs import PromptOutputs
from services.worker.engine.rank.sequences import Ints, SequenceState
from services.worker.engine.rank.shared_pages import Progress
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import ScheduledChunk
from services.worker.rank_protocol.sliding_pool import PoolSizes

_LOGITS = 256  # rows of logits that are made at a time


class PlainCompute:
    """See `Compute` for the contract.

    Args:
        cache: On the same device as the model.
        capture: Records decode steps for replay; None to run every step op by op.
        pages: Which pages a token reads in layers without a window; None: all.
        tiled: A token's result does not depend on what else is in the step (`tiles.py`), at the price of time
            where there are many tokens; for CPUs.

    Attributes:
        cache: See the argument.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        capture: GraphCapture | None = None,
        *,
        pages: PagePolicy | None = None,
        tiled: bool = False,
    ) -> None:
        self.sizes: PoolSizes = cache.sizes
        self.collectives = model.head.collectives
        rank, world = self.collectives.rank, self.collectives.world
        self.blocks: CacheBlocks = PlainBlocks(cache, model.config, rank, world)
        self.times = ComputeTimes()
        self.prompts = PromptOutputs()
        self.vacated_bytes = (0, 0)
        self.adapts = True
        self._adapters: dict[int, PlainAdapter] = {}
        self._model = model
        self.cache = cache
        self._tiled = tiled
        on_gpu = model.placement.on_gpu
        self.likeliest: FindLikeliest | None = self.find_likeliest if on_gpu else None
        self._host_rows = torch.empty(0)  # where logits of a GPU are copied to
        self._read_range = ReadRange(frozenset(model.config.windows), pages, masks_later_chunks=not on_gpu)
        # which experts are computed depends on the tokens, so steps with experts cannot be recorded
        routed = any(isinstance(layer.mlp, ExpertsConfig) for layer in model.config.layers)
        self._graphs = None if capture is None or routed else DecodeGraphs(model, cache, capture, pages)
        self.spans: OpSpans | None = None
        self.op_names = [OpName("layer", "layer", layer) for layer in range(len(model.config.layers))]
        self._layer, self._layer_ns = 0, 0  # whose end comes next, and when the one before ended
        self.progress = Progress()

    @property
    def progress(self) -> Progress:
        """See `Compute`."""
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._progress = progress
        self._model.after_layer = self._after_layer

    def vacate(self, ranges: Sequence[tuple[int, int]], sliding_ranges: Sequence[tuple[int, int]]) -> None:
        """Gives nothing back: see `vacated_bytes`."""

    def prepare_adapter(self, weights: AdapterWeights) -> PlainAdapter:
        """See `Compute`."""
        return PlainAdapter.prepare(
            weights,
            self._model.config,
            rank=self.collectives.rank,
            world=self.collectives.world,
            placement=self._model.placement,
        )

    def set_adapter(self, slot: int, prepared: PreparedAdapter | None) -> None:
        """See `Compute`."""
        if prepared is None:
            self._adapters.pop(slot, None)
        else:
            assert isinstance(prepared, PlainAdapter)  # of `prepare_adapter`
            self._adapters[slot] = prepared

    def forward(self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """See `Compute`."""
        with torch.inference_mode():
            logits = self.logits_on_device(chunks, states)
            # the sampler computes on the CPU: one copy per step
            return None if logits is None else self._on_host(logits.to(torch.float32))

    def find_likeliest(
        self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> NDArray[np.int64] | None:
        """See `Compute.likeliest`."""
        with torch.inference_mode():
            logits = self.logits_on_device(chunks, states)
            if logits is None:
                return None
            best, tokens = logits.max(dim=-1)
            return tokens.masked_fill_(~best.isfinite(), -1).cpu().numpy()

    def logits_on_device(
        self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> Tensor | None:
        """The logits where they were computed."""
        if self.spans is not None:
            self._layer, self._layer_ns = 0, time.monotonic_ns()
        plain = any(state.wants_rows or state.adapter != NO_ADAPTER for state in states)
        if self._graphs is not None and not plain and self._graphs.can_replay(chunks):
            return self._graphs.forward(chunks, states)
        hidden, samples, prompts = self._run(chunks, states)
        if len(prompts):
            self._take_prompts(hidden[prompts], chunks, states)
        if not len(samples):
            return None
        sampling = [
            state.adapter
            for part, state in zip(chunks, states, strict=True)
            if state.samples(part)
            for _ in range(1 + part.drafts)
        ]
        return self._logits(hidden[samples], np.array(sampling, np.int64))

    def _on_host(self, logits: Tensor) -> Tensor:
        """Copies logits to the CPU, from a GPU into one pinned buffer: a copy into new memory is slow."""
        if not logits.is_cuda:
            return logits
        if self._host_rows.shape[-1:] != logits.shape[-1:] or len(self._host_rows) < len(logits):
            rows = 1 << (len(logits) - 1).bit_length()
            self._host_rows = torch.empty(rows, logits.shape[-1], pin_memory=True)
        own = self._host_rows[: len(logits)]
        own.copy_(logits)
        return own

    def _after_layer(self) -> None:
        self._progress.beat()
        if self.spans is not None:
            now_ns = time.monotonic_ns()
            self.spans.add(self._layer, self._layer_ns, now_ns)
            self._layer, self._layer_ns = (self._layer + 1) % len(self.op_names), now_ns

    def _run(
        self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The stream after the last layer, and which of its rows are sampled and wanted by prompts."""
        if self._tiled:
            step = make_tiles(chunks, states, self._read_range, self.sizes)
            hidden = [
                self._model.hidden_states(tile, self.cache, self._rows(tile.adapters)) for tile in step.tiles
            ]
            return torch.cat(hidden), step.sample_rows, step.prompt_rows
        batch = make_batch(chunks, states, self._read_range, sliding=self.sizes.num_sliding > 0)
        if self._model.placement != CPU:
            batch = batch.to(self._model.placement)
        prompts = batch.sample_rows[:0] if batch.prompt_rows is None else batch.prompt_rows
        hidden_rows = self._model.hidden_states(batch, self.cache, self._rows(batch.adapters))
        return hidden_rows, batch.sample_rows, prompts

    def _rows(self, slots: Ints | None) -> RowAdapters | None:
        return row_adapters(slots, self._adapters, self._model.placement.device)

    def _by_rows(self, compute: Callable[[Tensor, slice], Tensor | None], rows: Tensor) -> Tensor | None:
        return in_tiles(compute, rows) if self._tiled else compute(rows, slice(None))

    def _logits(self, hidden: Tensor, slots: Ints) -> Tensor | None:
        """Logits of rows whose adapters are in these slots."""

        def compute(rows: Tensor, which: slice) -> Tensor | None:
            own = self._rows(slots[which])
            return self._model.head(self._model.norm(rows), None if own is None else own.of_layer(HEAD_LAYER))

        return self._by_rows(compute, hidden)

    def _take_prompts(
        self, rows: Tensor, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> None:
        """Gives rows [rows, hidden], before the last norm, to `prompts` on rank 0; logits in parts."""
        begin = 0
        for part, state in zip(chunks, states, strict=True):
            positions = state.prompt_rows(part.start, part.num_tokens) if state.wants_rows else range(0)
            while positions:
                now, positions = positions[:_LOGITS], positions[_LOGITS:]
                own = rows[begin : begin + len(now)]
                begin += len(now)
                logits = None
                if state.embedding is None:  # all ranks gather
                    logits = self._logits(own, np.full(len(own), state.adapter, np.int64))
                    logits = None if logits is None else logits.to(torch.float32).cpu()
                if self.collectives.rank == 0:
                    hidden = self._by_rows(lambda part, _: self._model.norm(part), own)
                    assert hidden is not None
                    self.prompts.take_rows(state, now.start, hidden.to(torch.float32).cpu(), logits)
