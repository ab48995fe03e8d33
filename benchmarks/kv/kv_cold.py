"""Measures what the fp8 cold zone saves and costs: time of an attention op, and memory of a token.

The kernels' own op runs over a cache of random numbers, without model and ranks. One op is a layer's: it
rotates queries and keys, stores, and attends, for one token of each sequence. The time to compress a block,
once in sixteen tokens of a sequence, is measured apart.
"""

import time
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.engine_plans import KVColdPlan
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.native.cache import (
    HeadShape,
    NativeCache,
    NativeLayerCache,
    block_bytes,
    hot_bytes,
)
from services.worker.engine.native.library import NUM_TIMES, KernelLibrary, kernels
from services.worker.engine.native.operands import FLOATS, Activation, AttentionInputs
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.sliding_pool import PoolSizes

HOT = ColdZone(1, (True,))
KINDS: dict[str, tuple[torch.dtype, ColdZone | None]] = {
    "fp32": (torch.float32, None),
    "fp16": (torch.float16, None),
    "fp8": (torch.float16, HOT),
}
BF16_BYTES = 2


def measure(plan: KVColdPlan) -> dict[str, Any]:
    """Return times and sizes of one layer, a row for each context.

    Raises:
        NoKernels: There are no compiled kernels for this machine.
    """
    compiled = kernels()
    shape = HeadShape(plan.heads, plan.kv_heads, plan.head_dim)
    rows = []
    for context in plan.contexts:
        timed = {kind: _TimedOp(compiled, plan, context, made) for kind, made in KINDS.items()}
        for _ in range(plan.repeats):  # in turns, so that other load on the machine disturbs all
            for one in timed.values():
                one.run_op()
        sizes = {kind: _sequence_bytes(shape, context, *made) for kind, made in KINDS.items()}
        rows.append(
            {
                "context": context,
                "attention_us": {kind: round(1e6 * one.close(), 1) for kind, one in timed.items()},
                "bytes_per_token": {kind: round(size / context, 1) for kind, size in sizes.items()},
                "less_than_bf16": round(1 - sizes["fp8"] / _bf16_bytes(shape, context), 4),
            }
        )
    return {
        "kernels": compiled.target,
        "heads": plan.heads,
        "kv_heads": plan.kv_heads,
        "head_dim": plan.head_dim,
        "batch": plan.batch,
        "threads": plan.threads,
        "hot_tokens": HOT.hot_blocks * BLOCK_SIZE,
        "compress_block_us": round(1e6 * _compress_s(compiled, shape, plan.repeats), 1),
        "rows": rows,
    }


class _TimedOp:
    """An attention op over a cache of one layer that is full up to the context."""

    def __init__(
        self,
        compiled: KernelLibrary,
        plan: KVColdPlan,
        context: int,
        kind: tuple[torch.dtype, ColdZone | None],
    ) -> None:
        shape, batch = HeadShape(plan.heads, plan.kv_heads, plan.head_dim), plan.batch
        self._kernels, self._threads = compiled, compiled.new_thread_pool(plan.threads, False)
        self._clock = np.zeros(NUM_TIMES, np.int64)
        self._seconds: list[float] = []
        per_sequence = context // BLOCK_SIZE + 1
        cache = NativeCache([0], PoolSizes(batch * per_sequence), shape, *kind).layers[0]
        fill(cache)
        qkv = buffer(batch, padded((shape.heads + 2 * shape.kv_heads) * shape.dim)).normal_()
        rotation = buffer(context + 1, shape.dim // 2), buffer(context + 1, shape.dim // 2)
        self._program = program = Program()  # owns what the ops point to
        inputs = AttentionInputs(cos=rotation[0], sin=rotation[1], scale=shape.dim**-0.5)
        out = Activation.allocate(shape.heads * shape.dim, FLOATS)
        program.attention(shape, cache, inputs=inputs, qkv=qkv, out=out)
        self._ops = program.whole(barriers=False)
        # blocks are scattered, as after some time of serving
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
            "full_blocks": np.zeros((0, 3), np.int32),
        }
        self._arrays = {name: np.ascontiguousarray(made, np.int32) for name, made in self._arrays.items()}
        addresses = {name: made.ctypes.data for name, made in self._arrays.items()}
        self._batch = ForwardBatch(num_rows=batch, num_spans=batch, **addresses)
        self.run_op()
        self._seconds.clear()

    def run_op(self) -> None:
        """Run and time one op."""
        began = time.perf_counter()
        self._kernels.run_program(
            self._threads, None, self._ops, len(self._ops), self._batch, self._clock.ctypes.data, None, None
        )
        self._seconds.append(time.perf_counter() - began)

    def close(self) -> float:
        """End the threads; return the median seconds of an op."""
        self._kernels.free_thread_pool(self._threads)
        return median(self._seconds)


def _compress_s(compiled: KernelLibrary, shape: HeadShape, repeats: int) -> float:
    """Return the seconds to compress a block of a layer, on one thread."""
    count = 2 * shape.kv_heads * BLOCK_SIZE * shape.width
    side, codes, scale = torch.randn(count), np.zeros(count, np.uint8), np.zeros(1, np.float32)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        compiled.compress(side.data_ptr(), count, codes.ctypes.data, scale.ctypes.data)
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def fill(cache: NativeLayerCache) -> None:
    """Fill the cache with random keys and values."""
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
    """Return the bytes of a layer for so many tokens of a running sequence."""
    blocks = tokens // BLOCK_SIZE * block_bytes(1, shape, dtype, zone.num_layers if zone else 0)
    if zone is None:
        return blocks
    return blocks + hot_bytes(1, shape, dtype, zone) - hot_bytes(0, shape, dtype, zone)


def _bf16_bytes(shape: HeadShape, tokens: int) -> float:
    return 2 * BF16_BYTES * shape.kv_heads * shape.dim * tokens
