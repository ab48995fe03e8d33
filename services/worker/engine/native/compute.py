"""Runs the compiled forward pass for a step's chunks.

Prepares the index arrays, cuts a large batch into passes, and calls the collectives between the ops where
ranks do not share memory. Results do not depend on how a batch is cut.
"""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import CollectiveError, Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.native.adapters.packed_adapter import PackedAdapter, pack_adapter
from services.worker.engine.native.adapters.slots import row_slots
from services.worker.engine.native.all_reduce_buffers import AllReduceBuffers
from services.worker.engine.native.blocks import NativeBlocks, PassIndex
from services.worker.engine.native.cache import NativeCache, heads_of
from services.worker.engine.native.decoder import NativeDecoder
from services.worker.engine.native.layers.attention_ops import RankPosition
from services.worker.engine.native.library import ALL_HERE, NUM_TIMES, KernelLibrary
from services.worker.engine.native.op_lists import Segment
from services.worker.engine.native.operands import MAX_ROWS
from services.worker.engine.native.packed_weights import padded
from services.worker.engine.native.passes import PassChunk, PromptRows, passes
from services.worker.engine.native.recent_window import RecentWindow
from services.worker.engine.native.structs.forward import ForwardBatch, OpTrace
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.rope import RotaryEmbedding
from services.worker.engine.rank.compute import CacheBlocks, ComputeTimes, FindLikeliest, PreparedAdapter
from services.worker.engine.rank.op_spans import OpName, OpSpans
from services.worker.engine.rank.prompt_outputs import PromptOutputs
from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.rank.shared_pages import Progress
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk
from services.worker.rank_protocol.sliding_pool import PoolSizes

Ints = NDArray[np.int32]
_GATHER = OpName("gather logits", "collectives")


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """How the kernels run.

    Attributes:
        kv_dtype: Of the KV cache, fp32 or fp16.
        cold: Which layers and blocks are fp8; None: none.
        spin: Whether threads and ranks wait for each other on the core; only where there are cores for all.
        pages: Which pages a token reads in layers without a window; None: all.
    """

    threads: int = 1
    kv_dtype: torch.dtype = torch.float32
    cold: ColdZone | None = None
    spin: bool = True
    pages: PagePolicy | None = None


class NativeCompute:
    """See `Compute` for the contract.

    Args:
        collectives: Connects the ranks; with shared memory the kernels use it directly.
        options: How the kernels run.

    Attributes:
        cache: The KV cache.
        recent_window: The blocks in full precision before a cold zone; None without one.
    """

    def __init__(
        self,
        kernels: KernelLibrary,
        config: ModelConfig,
        weights: NativeWeights,
        collectives: Collectives,
        *,
        sizes: PoolSizes,
        options: NativeOptions,
    ) -> None:
        self.sizes = sizes
        self.collectives = collectives
        self.times = ComputeTimes()
        self.progress = Progress()
        self.prompts = PromptOutputs()
        self.adapts = True
        self.likeliest: FindLikeliest | None = None
        self.spans: OpSpans | None = None
        self._kernels = kernels
        self._vocab_size = config.vocab_size
        heads = heads_of(config, collectives.rank, collectives.world)
        cache = NativeCache(config.windows, sizes, heads, options.kv_dtype, options.cold)
        self.cache = cache
        self.vacated_bytes, self.vacate = cache.vacated_bytes, cache.vacate
        cold = options.cold
        self.recent_window = None if cold is None else RecentWindow(sizes.num_blocks, cold.hot_blocks)
        self.blocks: CacheBlocks = NativeBlocks(kernels, cache, config, collectives.rank, collectives.world)
        positions = min(config.context_length, sizes.num_blocks * BLOCK_SIZE)
        rotations = {rope: _rotation(rope, config.context_length, positions) for rope in _ropes(config)}
        self._buffers = AllReduceBuffers.allocate(
            collectives, padded(config.hidden_size), weights.head.columns, options.spin
        )
        self._decoder = NativeDecoder(
            config,
            weights,
            position=RankPosition(collectives.rank, collectives.world, options.threads),
            cache=cache,
            rotations=rotations,
            buffers=self._buffers,
            pages=options.pages,
        )
        program, barriers = self._decoder.program, collectives.world > 1
        self._adapters, self._sites = program.adapters, program.sites
        plain, adapted = (program.op_names(barriers=barriers, adapters=one) for one in (False, True))
        self.op_names, self._adapted_names = [*plain, _GATHER], adapted
        self._gather_index = len(plain)
        uncut = not barriers or self._buffers.barrier is not None
        self._segments = {
            (adapters, head): program.segments(
                barriers=barriers,
                uncut=uncut,
                head=head,
                adapters=adapters,
                first=(len(plain) + 1) * adapters,
            )
            for adapters in (False, True)
            for head in (True, False)
        }
        self._hidden_size = config.hidden_size
        self._spans = np.zeros((MAX_ROWS, 4), np.int32)
        self._clock = (ctypes.c_int64 * NUM_TIMES)()
        self._threads = kernels.new_thread_pool(options.threads, options.spin)

    def forward(self, scheduled: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """See `Compute`."""
        adapted = self._adapters.require(states)
        logits: list[Tensor] = []
        for chunks in passes(scheduled, states):
            if logits and logits[-1].data_ptr() == self._buffers.logits.data_ptr():
                logits[-1] = logits[-1].clone()  # the next pass writes there
            found = self._run_pass(chunks, adapted=adapted)
            if found is not None:
                logits.append(found)
        self.times.linears_s, self.times.attention_s = self._clock[0] / 1e9, self._clock[1] / 1e9
        if not logits:
            return None
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def prepare_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """See `Compute`.

        Raises:
            AdapterError: The kernels cannot add one of its matrices.
        """
        return pack_adapter(self._kernels, self._sites, weights)

    def set_adapter(self, slot: int, prepared: PreparedAdapter | None) -> None:
        """See `Compute`."""
        assert prepared is None or isinstance(prepared, PackedAdapter)
        self._adapters.put(slot, prepared)
        self.op_names += self._adapted_names  # of the steps that follow
        self._adapted_names = []

    def close(self) -> None:
        """Ends the threads; the object is unusable then."""
        if self._threads:
            self._kernels.free_thread_pool(self._threads)
            self._threads = 0

    def _run_pass(self, chunks: list[PassChunk], *, adapted: bool) -> Tensor | None:
        """One pass of at most MAX_ROWS tokens; the logits as `forward` returns them."""
        rows = sum(count for _, _, count, _ in chunks)
        token_ids, positions = np.empty(rows, np.int32), np.empty(rows, np.int32)
        full, sliding = PassIndex(rows), PassIndex(rows if self.sizes.num_sliding else 0)
        samples: list[int] = []
        wanted: list[PromptRows] = []
        begin = at = 0
        for index, (state, start, count, sampled) in enumerate(chunks):
            end = begin + count
            num_blocks = (start + count - 1) // BLOCK_SIZE + 1
            if count == 1:
                token_ids[begin], positions[begin] = state.tokens.view[start], start
            else:
                token_ids[begin:end] = state.tokens.view[start : start + count]
                positions[begin:end] = np.arange(start, start + count)
            full.add(state.table.view[:num_blocks], begin, start, count)
            if self.sizes.num_sliding:
                sliding.add(state.sliding.view[:num_blocks], begin, start, count)
            self._spans[index] = begin, count, start, at
            at += num_blocks
            if state.wants_rows and (positions_wanted := state.prompt_rows(start, count)):
                wanted.append(PromptRows(state, positions_wanted, len(samples)))
                samples += range(
                    begin + positions_wanted.start - start, begin + positions_wanted.stop - start
                )
            if sampled:
                samples += range(end - sampled, end)
            begin = end
        table, sliding_table = full.table(), sliding.table()
        self.cache.use(int(table.max()), int(sliding_table.max(initial=-1)))
        sample_rows: Ints = np.array(samples, np.int32)
        batch = ForwardBatch(
            num_rows=rows,
            num_spans=len(chunks),
            num_samples=len(samples),
            token_ids=token_ids.ctypes.data,
            positions=positions.ctypes.data,
            slot_mapping=full.slots.ctypes.data,
            spans=self._spans.ctypes.data,
            block_tables=table.ctypes.data,
            sample_rows=sample_rows.ctypes.data,
            sliding_slot_mapping=sliding.slots.ctypes.data,
            sliding_tables=sliding_table.ctypes.data,
        )
        slots = row_slots(chunks) if adapted else None
        if slots is not None:
            sample_slots = slots[sample_rows]
            batch.row_adapters, batch.sample_adapters = slots.ctypes.data, sample_slots.ctypes.data
        if self.recent_window is not None:
            window = self.recent_window.assign_slots([chunk[:3] for chunk in chunks])
            window.fill_in(batch)
        # embeddings alone need no logits
        headless = bool(wanted) and not any(chunk[3] or chunk[0].embedding is None for chunk in chunks)
        for segment in self._segments[slots is not None, not headless]:
            self._run_ops(segment, batch)
            if segment.sums is not None:
                began_ns = time.monotonic_ns()
                self.collectives.all_reduce_sum(segment.sums[:rows])
                self._add_span(segment.first + len(segment.ops), began_ns)
        if not samples:
            return None
        logits = None if headless else self._gather_logits(len(samples))
        return self._take_prompts(wanted, len(samples), logits) if wanted else logits

    def _add_span(self, index: int, began_ns: int) -> None:
        if self.spans is not None:
            self.spans.add(index, began_ns, time.monotonic_ns())

    def _run_ops(self, segment: Segment, batch: ForwardBatch) -> None:
        barrier, ops, trace = self._buffers.barrier, segment.ops, None
        if self.spans is not None:
            spans, counts = self.spans.spans.ctypes.data, self.spans.counts.ctypes.data
            trace = OpTrace(spans=spans, counts=counts, capacity=self.spans.capacity, first=segment.first)
        if barrier is not None:
            barrier.timeout_ns = int(self.collectives.timeout_s * 1e9)
        before = self._clock[2]
        late = self._kernels.run_program(
            self._threads, barrier, ops, len(ops), batch, self._clock, self.progress.address, trace
        )
        self.collectives.seconds += (self._clock[2] - before) / 1e9
        if late != ALL_HERE:
            limit = self.collectives.timeout_s
            raise CollectiveError(f"rank {late} did not answer the others within {limit:g} s")

    def _take_prompts(self, wanted: list[PromptRows], count: int, logits: Tensor | None) -> Tensor | None:
        """Gives the rows that prompts want, of `count` sampled ones, to `prompts`; returns the others."""
        if self.collectives.rank:
            return None
        hidden = self._decoder.sampled_rows[:count, : self._hidden_size]
        sampled = torch.ones(count, dtype=torch.bool)
        for rows in wanted:
            begin, end = rows.begin, rows.begin + len(rows.positions)
            scored = None if logits is None else logits[begin:end]
            self.prompts.take_rows(rows.state, rows.positions.start, hidden[begin:end], scored)
            sampled[begin:end] = False
        return logits[sampled] if logits is not None and bool(sampled.any()) else None

    def _gather_logits(self, rows: int) -> Tensor | None:
        """The logits of that many rows on rank 0, [rows, vocab]."""
        collectives, logits = self.collectives, self._buffers.logits[:rows]
        if collectives.world > 1 and self._buffers.barrier is None:
            began_ns = time.monotonic_ns()
            gathered = collectives.gather(logits)
            self._add_span(self._gather_index, began_ns)
            if gathered is None:
                return None
            logits = gathered.transpose(0, 1).reshape(rows, -1)
        return logits[:, : self._vocab_size] if collectives.rank == 0 else None


def _ropes(config: ModelConfig) -> set[RopeConfig]:
    return {layer.attention.rope for layer in config.layers if layer.attention.rope is not None}


def _rotation(rope: RopeConfig, context_length: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the first positions, [positions, half of the rotated dimensions] each."""
    cos, sin = RotaryEmbedding(rope, context_length).table(positions)
    return cos.contiguous(), sin.contiguous()
