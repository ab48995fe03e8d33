"""What the fp8 cold zone saves and costs: time of an attention op and memory of a token, by type of cache.

Runs the kernels' own op over a cache of random numbers: no model, no ranks. One op is a layer's: it turns
queries and keys, stores, and attends, for one token of each sequence. What it costs to compress a block, once
in sixteen tokens of a sequence, is measured apart.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.native.library import NUM_TIMES, KernelLibrary, kernels
from services.worker.engine.native.native_cache import (
    HeadShape,
    NativeCache,
    NativeLayerCache,
    block_bytes,
    hot_bytes,
)
from services.worker.engine.native.operands import Activation, QueryKeyInputs
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs import ForwardBatch
from services.worker.rank_protocol.plan import BLOCK_SIZE

HOT = ColdZone(1, (True,))
KINDS: dict[str, tuple[torch.dtype, ColdZone | None]] = {
    "fp32": (torch.float32, None),
    "fp16": (torch.float16, None),
    "fp8": (torch.float16, HOT),
}
BF16_BYTES = 2


def run(
    *,
    heads: int = 12,
    kv_heads: int = 12,
    head_dim: int = 64,
    batch: int = 8,
    contexts: Sequence[int] = (512, 2048, 4096),
    threads: int = 1,
    repeats: int = 50,
    compiled: KernelLibrary | None = None,
) -> dict[str, Any]:
    """Times and sizes of one layer.

    Args:
        heads: Query heads.
        kv_heads: KV heads, which divide them.
        head_dim: Numbers of a head.
        batch: Sequences in a step.
        contexts: Tokens of each of them, one measurement for each number.
        threads: That share an op.
        repeats: Ops of a measurement, of which the median counts.
        compiled: The kernels to measure; None: this machine's.

    Raises:
        NoKernels: there are none for this machine.
    """
    compiled = compiled or kernels()
    shape = HeadShape(heads, kv_heads, head_dim)
    rows = []
    for context in contexts:
        case = _Case(compiled, shape, batch, context, threads)
        timed = {kind: _Timed(case, *made) for kind, made in KINDS.items()}
        for _ in range(repeats):  # by turns, so that what else the machine does hits all
            for one in timed.values():
                one.step()
        rows.append(
            {
                "context": context,
                "attention_us": {kind: round(1e6 * one.close(), 1) for kind, one in timed.items()},
                "bytes_per_token": {
                    kind: round(_sequence_bytes(shape, context, *made) / context, 1)
                    for kind, made in KINDS.items()
                },
                "less_than_bf16": round(
                    1 - _sequence_bytes(shape, context, torch.float16, HOT) / _bf16(shape, context), 4
                ),
            }
        )
    return {
        "kernels": compiled.target,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "batch": batch,
        "threads": threads,
        "hot_tokens": HOT.hot_blocks * BLOCK_SIZE,
        "compress_block_us": round(1e6 * _compress(compiled, shape, repeats), 1),
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """What is computed: one token of each of `batch` sequences of `context` tokens."""

    compiled: KernelLibrary
    shape: HeadShape
    batch: int
    context: int
    threads: int


class _Timed:
    """An attention op over a cache of one layer that is full up to the context."""

    def __init__(self, case: _Case, dtype: torch.dtype, zone: ColdZone | None) -> None:
        shape, batch, context = case.shape, case.batch, case.context
        self._kernels, self._threads = case.compiled, case.compiled.new_thread_pool(case.threads, False)
        self._clock = np.zeros(NUM_TIMES, np.int64)
        self._seconds: list[float] = []
        per_sequence = context // BLOCK_SIZE + 1
        cache = NativeCache(1, batch * per_sequence, shape, dtype, zone).layers[0]
        fill(cache)
        qkv = buffer(batch, padded((shape.heads + 2 * shape.kv_heads) * shape.dim)).normal_()
        rotation = buffer(context + 1, shape.dim // 2), buffer(context + 1, shape.dim // 2)
        self._program = program = Program()  # owns what the ops point to
        inputs = QueryKeyInputs(*rotation, norms=None, eps=0.0)
        out = Activation.allocate(shape.heads * shape.dim, False)
        program.attention(shape, cache, window=0, inputs=inputs, qkv=qkv, out=out)
        self._ops = program.whole(barriers=False)
        # blocks lie apart, as after some time of serving
        tables = (
            np.random.default_rng(1).permutation(batch * per_sequence).astype(np.int32).reshape(batch, -1)
        )
        first = max(0, context // BLOCK_SIZE - HOT.hot_blocks)
        hot = per_sequence - first
        positions = np.full(batch, context, np.int32)
        numbers = np.arange(batch, dtype=np.int32)
        ones, offset = np.ones(batch, np.int32), context % BLOCK_SIZE
        self._arrays: dict[str, np.ndarray[Any, Any]] = {
            "token_ids": numbers,
            "positions": positions,
            "slot_mapping": tables[:, -1] * BLOCK_SIZE + offset,
            "spans": np.stack([numbers, ones, positions, numbers * per_sequence], 1),
            "block_tables": tables,
            "sample_rows": numbers,
            "window_slot_mapping": (numbers * hot + hot - 1) * BLOCK_SIZE + offset,
            "window_spans": np.stack([ones * first, numbers * hot], 1),
            "window_tables": np.arange(batch * hot),
            "full_blocks": np.zeros((0, 2), np.int32),
        }
        self._arrays = {name: np.ascontiguousarray(made, np.int32) for name, made in self._arrays.items()}
        addresses = {name: made.ctypes.data for name, made in self._arrays.items()}
        self._batch = ForwardBatch(num_rows=batch, num_spans=batch, **addresses)
        self.step()
        self._seconds.clear()

    def step(self) -> None:
        """One op."""
        began = time.perf_counter()
        self._kernels.run_program(
            self._threads, None, self._ops, len(self._ops), self._batch, self._clock.ctypes.data, None
        )
        self._seconds.append(time.perf_counter() - began)

    def close(self) -> float:
        """Ends the threads; the median step, in seconds."""
        self._kernels.free_thread_pool(self._threads)
        return median(self._seconds)


def _compress(compiled: KernelLibrary, shape: HeadShape, repeats: int) -> float:
    """Seconds to compress a block of a layer, on one thread."""
    count = 2 * shape.kv_heads * BLOCK_SIZE * shape.width
    side, codes, scale = torch.randn(count), np.zeros(count, np.uint8), np.zeros(1, np.float32)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        compiled.compress(side.data_ptr(), count, codes.ctypes.data, scale.ctypes.data)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def fill(cache: NativeLayerCache) -> None:
    """Random keys and values everywhere."""
    for side in (cache.keys, cache.values):
        side.normal_()
    if cache.cold is not None:
        for codes, scales in (
            (cache.cold.keys, cache.cold.key_scales),
            (cache.cold.values, cache.cold.value_scales),
        ):
            codes.random_(0, 0x70)
            scales.fill_(0.01)


def _sequence_bytes(shape: HeadShape, tokens: int, dtype: torch.dtype, zone: ColdZone | None) -> float:
    """Of a layer, for so many tokens of one sequence that is running."""
    blocks = tokens // BLOCK_SIZE * block_bytes(1, shape, dtype, zone)
    if zone is None:
        return blocks
    return blocks + hot_bytes(1, shape, dtype, zone) - hot_bytes(0, shape, dtype, zone)


def _bf16(shape: HeadShape, tokens: int) -> float:
    return 2 * BF16_BYTES * shape.kv_heads * shape.dim * tokens
