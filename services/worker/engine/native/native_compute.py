"""Runs the compiled forward pass for a step's slices.

Prepares the index arrays, cuts a large batch into passes, and sees to what lies between ops where the ranks
meet over other collectives than this host's shared memory. Results do not depend on how a batch is cut.
"""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.model_config import ModelConfig
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import CollectiveError, Collectives
from services.worker.engine.native.all_reduce_buffers import Meeting
from services.worker.engine.native.decoder import NativeDecoder
from services.worker.engine.native.library import ALL_HERE, NUM_TIMES, BatchPointers, Kernels, Op
from services.worker.engine.native.native_blocks import NativeBlocks
from services.worker.engine.native.native_cache import NativeCache
from services.worker.engine.native.native_weights import NativeWeights
from services.worker.engine.native.packed_weights import padded
from services.worker.engine.native.program import MAX_ROWS, HeadShape
from services.worker.engine.native.recent_window import Zones
from services.worker.engine.plain.rope import RotaryEmbedding
from services.worker.engine.rank.compute import CacheBlocks, Times
from services.worker.engine.rank.rank_progress import Progress
from services.worker.engine.rank.sequences import SequenceState
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk

Ints = NDArray[np.int32]
Piece = tuple[
    SequenceState, int, int, bool
]  # sequence, first position, tokens, whether its last one is sampled


def heads_of(config: ModelConfig, rank: int, world: int) -> HeadShape:
    """The heads of one rank."""
    return HeadShape(len(config.heads_of(rank, world)), len(config.kv_heads_of(rank, world)), config.head_dim)


class NativeCompute:
    """See `Compute` for the contract.

    Args:
        kernels: Compiled for this machine.
        config: The whole model's shape.
        weights: This rank's.
        collectives: Connects the ranks; over shared memory the kernels meet there themselves.
        num_blocks: Of the KV cache.
        threads: Of this rank.
        kv_dtype: Of the cache, fp32 or fp16.
        cold: What of the cache is fp8; None: nothing.
        spin: Whether threads and ranks wait for each other on the core; not where they are more than cores.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: ModelConfig,
        weights: NativeWeights,
        collectives: Collectives,
        *,
        num_blocks: int,
        threads: int,
        kv_dtype: torch.dtype = torch.float32,
        cold: ColdZone | None = None,
        spin: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.collectives = collectives
        self.times = Times()
        self.progress = Progress()
        self._kernels = kernels
        self._vocab_size = config.vocab_size
        heads = heads_of(config, collectives.rank, collectives.world)
        cache = NativeCache(config.num_layers, num_blocks, heads, kv_dtype, cold)
        self._zones = None if cold is None else Zones(num_blocks, cold.hot_blocks)
        self.blocks: CacheBlocks = NativeBlocks(kernels, cache, config, collectives.rank, collectives.world)
        positions = min(config.context_length, num_blocks * BLOCK_SIZE)
        cos, sin = RotaryEmbedding(config.head_dim, config.rope, config.context_length).table(positions)
        rotation = (cos.contiguous(), sin.contiguous())
        self._meeting = Meeting.make(collectives, padded(config.hidden_size), weights.head.columns, spin)
        self._decoder = NativeDecoder(
            config, weights, heads=heads, cache=cache, rotation=rotation, meeting=self._meeting
        )
        program, shared = self._decoder.program, self._meeting.exchange is not None
        if collectives.world == 1 or shared:
            self._segments = [program.whole(exchanges=shared)]
        else:
            self._segments = program.segments()
        self._spans = np.zeros((MAX_ROWS, 4), np.int32)
        self._clock = (ctypes.c_int64 * NUM_TIMES)()
        self._team = kernels.team_new(threads, spin)

    def forward(self, slices: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """See `Compute`."""
        logits: list[Tensor] = []
        for pieces in _passes(slices, states):
            if logits and logits[-1].data_ptr() == self._meeting.logits.data_ptr():
                logits[-1] = logits[-1].clone()  # the next pass writes there
            found = self._pass(pieces)
            if found is not None:
                logits.append(found)
        self.times.linears_s, self.times.attention_s = self._clock[0] / 1e9, self._clock[1] / 1e9
        if not logits:
            return None
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def close(self) -> None:
        """Ends the threads; the object is unusable then."""
        if self._team:
            self._kernels.team_free(self._team)
            self._team = 0

    def _pass(self, pieces: list[Piece]) -> Tensor | None:
        """One pass of at most MAX_ROWS tokens; the logits as `forward` returns them."""
        rows = sum(count for _, _, count, _ in pieces)
        token_ids, positions, slots = (np.empty(rows, np.int32) for _ in range(3))
        tables: list[NDArray[np.int64]] = []
        samples: list[int] = []
        begin = at = 0
        for index, (state, start, count, sampled) in enumerate(pieces):
            end = begin + count
            blocks = state.table.view[: (start + count - 1) // BLOCK_SIZE + 1]
            if count == 1:
                token_ids[begin], positions[begin] = state.tokens.view[start], start
                slots[begin] = blocks[-1] * BLOCK_SIZE + start % BLOCK_SIZE
            else:
                where = np.arange(start, start + count)
                token_ids[begin:end], positions[begin:end] = state.tokens.view[start : start + count], where
                slots[begin:end] = blocks[where // BLOCK_SIZE] * BLOCK_SIZE + where % BLOCK_SIZE
            self._spans[index] = begin, count, start, at
            tables.append(blocks)
            at += len(blocks)
            if sampled:
                samples.append(end - 1)
            begin = end
        table: Ints = np.concatenate(tables).astype(np.int32)
        sample_rows: Ints = np.array(samples, np.int32)
        batch = BatchPointers(
            rows=rows,
            spans=len(pieces),
            samples=len(samples),
            token_ids=token_ids.ctypes.data,
            positions=positions.ctypes.data,
            slots=slots.ctypes.data,
            span=self._spans.ctypes.data,
            tables=table.ctypes.data,
            sample_rows=sample_rows.ctypes.data,
        )
        if self._zones is not None:
            zones = self._zones.enter([(state, start, count) for state, start, count, _ in pieces])
            zones.put(batch)
        for index, ops in enumerate(self._segments):
            if index:
                assert self._meeting.partial is not None
                self.collectives.all_reduce_sum(self._meeting.partial[:rows])
            self._run(ops, batch)
        if not samples:
            return None
        return self._gather(len(samples))

    def _run(self, ops: ctypes.Array[Op], batch: BatchPointers) -> None:
        exchange = self._meeting.exchange
        if exchange is not None:
            exchange.timeout_ns = int(self.collectives.timeout_s * 1e9)
        before = self._clock[2]
        late = self._kernels.run(
            self._team, exchange, ops, len(ops), batch, self._clock, self.progress.address
        )
        self.collectives.seconds += (self._clock[2] - before) / 1e9
        if late != ALL_HERE:
            limit = self.collectives.timeout_s
            raise CollectiveError(f"rank {late} did not answer the others within {limit:g} s")

    def _gather(self, rows: int) -> Tensor | None:
        """The logits of that many rows on rank 0, [rows, vocab]."""
        collectives, logits = self.collectives, self._meeting.logits[:rows]
        if collectives.world > 1 and self._meeting.exchange is None:
            gathered = collectives.gather(logits)
            if gathered is None:
                return None
            logits = gathered.transpose(0, 1).reshape(rows, -1)
        return logits[:, : self._vocab_size] if collectives.rank == 0 else None


def _passes(slices: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Iterator[list[Piece]]:
    """Cuts the slices, in their order, into passes of at most MAX_ROWS tokens."""
    pieces: list[Piece] = []
    room = MAX_ROWS
    for part, state in zip(slices, states, strict=True):
        start, left = part.start, part.num_tokens
        while left:
            count = min(left, room)
            left -= count
            pieces.append((state, start, count, part.sample and not left))
            start, room = start + count, room - count
            if not room:
                yield pieces
                pieces, room = [], MAX_ROWS
    if pieces:
        yield pieces
