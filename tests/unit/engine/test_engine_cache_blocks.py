"""The stored bytes of KV blocks: any backend with any number of ranks reads what another one wrote."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.kv_transfer.kv_blocks import PlainBlocks
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk, StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_threads import (
    UNEVEN,
    ComputeFactory,
    new_sequence,
    plain_compute,
    run_threads,
)
from tests.kits.engine.small_models import small_models

NUM_BLOCKS = 16
KINDS = ("plain", "native", "native fp16")
FULL = 3  # number of full blocks in TEXT
TEXT = [(7 * i + 3) % 203 for i in range(FULL * BLOCK_SIZE + 5)]
PAST = TEXT[: FULL * BLOCK_SIZE]
Bytes = NDArray[np.uint8]
Stored = dict[tuple[int, int], bytes]  # (block of the text, KV head of the model) -> bytes

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("llama", {}),
    "nine heads on three": ("llama", UNEVEN["nine heads on three"]),
    "one KV head": ("llama", {"num_key_value_heads": 1}),
    "no whole registers": ("qwen3", {"head_dim": 24}),
}


def native(dtype: torch.dtype = torch.float32) -> ComputeFactory:
    """A factory of the compiled backend with a KV cache of type `dtype`."""
    if not targets():
        pytest.skip("the kernels are for x86-64 with AVX2")

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        weights = NativeWeights.load(open_source(checkpoint, config, collectives), config, kernels())
        options = NativeOptions(kv_dtype=dtype, spin=False)
        sizes = PoolSizes(num_blocks)
        return NativeCompute(kernels(), config, weights, collectives, sizes=sizes, options=options)

    return make


def factory(name: str) -> ComputeFactory:
    return {"plain": plain_compute, "native": native(), "native fp16": native(torch.float16)}[name]


model = small_models(MODELS)


def compute_of(model: Path, make: ComputeFactory, collectives: Collectives) -> Compute:
    with open_checkpoint(model) as checkpoint:
        return make(checkpoint, read_config(model), collectives, NUM_BLOCKS)


def chunk_of(start: int, token_ids: list[int], blocks: list[int]) -> ScheduledChunk:
    return ScheduledChunk(seq_id=1, start=start, token_ids=token_ids, new_blocks=blocks, sample=True)


def write(model: Path, world: int, make: ComputeFactory) -> tuple[Stored, Tensor]:
    """The full blocks of TEXT as `world` ranks store them, and the logits after TEXT."""
    blocks = [5, 2, 11, 7]

    def work(collectives: Collectives) -> tuple[Stored, Tensor | None]:
        compute = compute_of(model, make, collectives)
        runner, cache = Runner(compute), compute.blocks
        runner.compute_logits(
            StepPlan(step_id=1, admit=[new_sequence(1, TEXT)], chunks=[chunk_of(0, PAST, blocks[:3])])
        )
        stored: Stored = {}
        for index, block in enumerate(blocks[:3]):
            wide: Bytes = np.full((len(cache.writes) + 1, cache.head_bytes + 7), 0xEE, np.uint8)
            cache.copy_out(block, wide[:-1])
            assert (wide[-1] == 0xEE).all()
            assert (wide[:, cache.head_bytes :] == 0xEE).all()
            for row, head in zip(wide, cache.writes, strict=False):
                stored[index, head] = row[: cache.head_bytes].tobytes()
        rest = chunk_of(len(PAST), TEXT[len(PAST) :], blocks[3:])
        logits = runner.compute_logits(StepPlan(step_id=2, chunks=[rest]))[1]
        assert set(cache.writes) <= set(cache.heads)
        return stored, None if logits is None else logits.clone()

    results = run_threads(world, work)
    together: Stored = {}
    for stored, _ in results:
        assert not together.keys() & stored.keys()  # no block and head is stored by two ranks
        together |= stored
    assert len(together) == FULL * read_config(model).num_kv_heads
    assert results[0][1] is not None
    return together, results[0][1]


def go_on(model: Path, world: int, make: ComputeFactory, stored: Stored) -> Tensor:
    """The logits after TEXT, whose full blocks are loaded from the store into other block numbers."""
    blocks = [9, 4, 0, 3]

    def work(collectives: Collectives) -> Tensor | None:
        compute = compute_of(model, make, collectives)
        for (index, head), data in stored.items():
            if head in compute.blocks.heads:
                compute.blocks.copy_in(blocks[index], head, np.frombuffer(b"!" + data, np.uint8)[None, 1:])
        rest = chunk_of(len(PAST), TEXT[len(PAST) :], blocks)
        plan = StepPlan(step_id=1, admit=[new_sequence(1, TEXT)], chunks=[rest])
        logits = Runner(compute).compute_logits(plan)[1]
        return None if logits is None else logits.clone()

    result = run_threads(world, work)[0]
    assert result is not None
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_blocks_give_the_same_bits(model: Path, kind: str) -> None:
    stored, wanted = write(model, 1, factory(kind))
    assert torch.equal(go_on(model, 1, factory(kind), stored), wanted)


def ranks_of_all() -> list[Any]:
    """Every model, number of ranks and kind; each kind reads each model once in `make test`."""
    return [
        pytest.param(name, world, kind, marks=() if (i + j) % 3 == k else pytest.mark.models)
        for i, name in enumerate(MODELS)
        for j, world in enumerate((2, 3, 9) if name in UNEVEN else (2, 4, 8))
        for k, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize(("model", "world", "kind"), ranks_of_all(), indirect=["model"])
def test_any_number_of_ranks_reads_what_another_wrote(model: Path, world: int, kind: str) -> None:
    """Includes more ranks than KV heads, where ranks share a KV head."""
    stored, wanted = write(model, world, factory(kind))
    assert torch.equal(go_on(model, world, factory(kind), stored), wanted)
    # the order of summation depends on the number of ranks
    found = go_on(model, world, factory(kind), write(model, 2, factory(kind))[0])
    torch.testing.assert_close(found, wanted, atol=4e-3 if kind == "native fp16" else 1e-4, rtol=0)
    for fewer in (1, 2):
        found = go_on(model, fewer, factory(kind), stored)
        torch.testing.assert_close(found, wanted, atol=4e-3 if kind == "native fp16" else 1e-4, rtol=0)


def test_kernels_and_torch_read_each_other_s_blocks(model: Path) -> None:
    most = read_config(model).num_kv_heads
    by_torch, wanted = write(model, 1, plain_compute)
    by_kernels, _ = write(model, 2, native())
    for stored in (by_torch, by_kernels):
        torch.testing.assert_close(go_on(model, 1, plain_compute, stored), wanted, atol=1e-4, rtol=0)
        torch.testing.assert_close(go_on(model, most, native(), stored), wanted, atol=1e-4, rtol=0)
    for key, data in by_torch.items():
        other = np.frombuffer(by_kernels[key], np.float32)
        np.testing.assert_allclose(np.frombuffer(data, np.float32), other, atol=1e-4)


def test_bytes_stand_in_the_order_that_was_agreed(model: Path) -> None:
    """For each layer: keys as [head_dim, 16], then values as [16, head_dim]."""
    shape = read_config(model)

    def work(collectives: Collectives) -> None:
        compute = compute_of(model, plain_compute, collectives)
        data = np.arange(compute.blocks.head_bytes // 4, dtype=np.float32)
        compute.blocks.copy_in(6, 0, data.view(np.uint8)[None])
        sides = data.reshape(shape.num_layers, 2, -1)
        layers = compute.cache.layers  # type: ignore[attr-defined]  # the plain cache's own tensors
        for layer, (keys, values) in zip(layers, sides, strict=True):
            rows = slice(6 * BLOCK_SIZE, 7 * BLOCK_SIZE)
            assert layer.keys[rows, 0].T.tolist() == keys.reshape(-1, BLOCK_SIZE).tolist()
            assert layer.values[rows, 0].tolist() == values.reshape(BLOCK_SIZE, -1).tolist()

    run_threads(1, work)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_come_in_while_a_step_runs(model: Path, kind: str) -> None:
    """Another thread copies blocks in; the running step does not read those blocks."""
    stored, wanted = write(model, 1, factory(kind))
    shape = read_config(model)

    def work(collectives: Collectives) -> Tensor:
        compute = compute_of(model, factory(kind), collectives)
        stop = threading.Event()

        def others() -> int:
            rounds = 0
            while not stop.is_set() or not rounds:
                for (index, head), data in stored.items():
                    compute.blocks.copy_in(12 + index, head, np.frombuffer(data, np.uint8)[None])
                rounds += 1
            return rounds

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(others)
            plan = StepPlan(step_id=1, admit=[new_sequence(1, TEXT)], chunks=[chunk_of(0, PAST, [5, 2, 11])])
            runner = Runner(compute)
            runner.compute_logits(plan)
            rest = chunk_of(len(PAST), TEXT[len(PAST) :], [7])
            logits = runner.compute_logits(StepPlan(step_id=2, chunks=[rest]))[1]
            stop.set()
            assert busy.result() > 0
        rows: Bytes = np.zeros((shape.num_kv_heads, compute.blocks.head_bytes), np.uint8)
        for index in range(FULL):
            compute.blocks.copy_out(12 + index, rows)
            assert {head: row.tobytes() for head, row in enumerate(rows)} == {
                head: data for (at, head), data in stored.items() if at == index
            }
        assert logits is not None
        return logits.clone()

    assert torch.equal(run_threads(1, work)[0], wanted)


def test_torch_s_blocks_may_be_bf16(model: Path) -> None:
    """The cache is in bf16 on a GPU."""
    shape = read_config(model)
    placement = Placement(dtype=torch.bfloat16)
    first, second = (KVCache(shape, PoolSizes(NUM_BLOCKS), 0, 1, placement) for _ in range(2))
    for layer in first.layers:
        layer.keys.normal_()
        layer.values.normal_()
    giver, taker = (PlainBlocks(cache, shape, 0, 1) for cache in (first, second))
    rows: Bytes = np.zeros((shape.num_kv_heads, giver.head_bytes), np.uint8)
    giver.copy_out(3, rows)
    taker.copy_in(8, 0, rows[:1])
    taker.copy_in(8, 1, rows[1:])
    for one, other in zip(first.layers, second.layers, strict=True):
        assert torch.equal(one.keys[48:64], other.keys[128:144])
        assert torch.equal(one.values[48:64], other.values[128:144])
    assert giver.head_bytes == 2 * shape.num_layers * BLOCK_SIZE * shape.head_dim * 2
