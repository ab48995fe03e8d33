"""The compiled kernels against transformers, torch, and their own results in other batches."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import CollectiveError, SingleRank
from services.worker.engine.collectives.shared_memory import SharedMemoryCollectives
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.native.operands import MAX_ROWS
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import shared_bytes
from services.worker.rank_protocol.run_config import Precision
from tests.kits.engine.rank_threads import (
    UNEVEN,
    Blocks,
    ComputeFactory,
    make_llama,
    native_ranks,
    new_sequence,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import all_models
from tests.kits.waiting import wait_for

TARGETS = targets()
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "biased": ("llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    **{name: ("llama", changes) for name, changes in UNEVEN.items()},
    "one KV head": ("llama", {"num_key_value_heads": 1}),  # more query heads than one task computes
    "mistral": ("mistral", {"sliding_window": 20}),
    "qwen3": ("qwen3", {"head_dim": 24, "intermediate_size": 100}),  # not a multiple of the vector width
}
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")


def mixed_plans() -> list[StepPlan]:
    """Whole and chunked prefills beside decodes of three sequences."""
    a, b, c = (some_tokens(100, seed) for seed in (1, 2, 3))
    cut = Blocks(64).chunk
    return [
        StepPlan(
            step_id=1,
            admit=[new_sequence(1, a[:40]), new_sequence(2, b)],
            chunks=[cut(1, 0, a[:40]), cut(2, 0, b[:33])],
        ),
        StepPlan(
            step_id=2,
            admit=[new_sequence(3, c)],
            chunks=[cut(2, 33, b[33:90]), cut(1, 40, a[40:41]), cut(3, 0, c[:1])],
        ),
        StepPlan(step_id=3, chunks=[cut(3, 1, c[1:60]), cut(1, 41, a[41:42]), cut(2, 90, b[90:91])]),
        StepPlan(step_id=4, chunks=[cut(1, 42, a[42:43]), cut(2, 91, b[91:92]), cut(3, 60, c[60:61])]),
    ]


def last_logits(model: Path, plans_of: Callable[[Blocks], list[StepPlan]], compute: ComputeFactory) -> Tensor:
    """The last logits row of the last plan."""
    return plan_logits(model, 1, plans_of(Blocks(128)), num_blocks=128, compute=compute)[-1][-1]


models = all_models(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_all_instruction_sets_agree(models: dict[str, Path], name: str) -> None:
    wanted = plan_logits(models[name], 1, mixed_plans())
    for target in TARGETS:
        for found, plain in zip(
            plan_logits(models[name], 1, mixed_plans(), compute=native_ranks(target)), wanted, strict=True
        ):
            torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("precision", "kv_dtype"),
    [("fp32", torch.float32), ("fp32", torch.float16), ("bf16", torch.float16), ("int8", torch.float16)],
)
@pytest.mark.parametrize("name", ["one KV head", "mistral", "qwen3"])
def test_same_bits_in_any_batch(
    models: dict[str, Path], name: str, kv_dtype: torch.dtype, precision: Precision
) -> None:
    text, others = some_tokens(97, 5), [some_tokens(90, seed) for seed in (6, 7, 8)]

    def whole(blocks: Blocks) -> list[StepPlan]:
        return [StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[blocks.chunk(1, 0, text)])]

    def in_pieces(blocks: Blocks) -> list[StepPlan]:
        cuts = [0, 5, 38, 39, 71, 96, 97]
        plans = [StepPlan(step_id=1, admit=[new_sequence(1, text)])]
        for begin, end in pairwise(cuts):
            plans.append(StepPlan(step_id=2, chunks=[blocks.chunk(1, begin, text[begin:end])]))
        return plans

    def beside_others(blocks: Blocks) -> list[StepPlan]:
        first = [blocks.chunk(1, 0, text[:96])]
        admit = [new_sequence(i, other) for i, other in enumerate(others, 2)]
        chunks = [blocks.chunk(i, 0, other) for i, other in enumerate(others, 2)]
        last = [blocks.chunk(1, 96, text[96:])]
        return [
            StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=first),
            StepPlan(step_id=2, admit=admit, chunks=chunks),
            StepPlan(
                step_id=3,
                chunks=[blocks.chunk(i, 90, [9]) for i in range(2, 5)] + last,
            ),
        ]

    for target in TARGETS:
        reference = last_logits(models[name], whole, native_ranks(target, 1, precision, kv_dtype))
        assert torch.isfinite(reference).all()
        for plans in (in_pieces, beside_others):
            for threads in (1, 2, 3):
                found = last_logits(models[name], plans, native_ranks(target, threads, precision, kv_dtype))
                assert torch.equal(found, reference)


def test_a_batch_beyond_one_pass_gives_the_same_bits(tmp_path: Path) -> None:
    model = make_llama(tmp_path, max_position_embeddings=2048, num_hidden_layers=2)
    texts = [some_tokens(MAX_ROWS - 3, 1), some_tokens(MAX_ROWS + 200, 2), some_tokens(7, 3)]
    blocks, apart = Blocks(128), Blocks(128)
    together = StepPlan(
        step_id=1,
        admit=[new_sequence(i, text) for i, text in enumerate(texts)],
        chunks=[blocks.chunk(i, 0, text) for i, text in enumerate(texts)],
    )
    one_by_one = [
        StepPlan(step_id=i, admit=[new_sequence(i, text)], chunks=[apart.chunk(i, 0, text)])
        for i, text in enumerate(texts)
    ]
    found = plan_logits(model, 1, [together], num_blocks=128, compute=native_ranks())[0]
    wanted = torch.cat(plan_logits(model, 1, one_by_one, num_blocks=128, compute=native_ranks()))
    assert found.shape == (3, 203)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_computed_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    half = make_llama(tmp_path / "half", dtype=dtype, attention_bias=True)
    plans = mixed_plans()
    wanted = plan_logits(half, 1, plans)
    for target in TARGETS:
        for found, plain in zip(
            plan_logits(half, 1, plans, compute=native_ranks(target)), wanted, strict=True
        ):
            torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 0.04), ("int8", 0.1)])
@pytest.mark.parametrize("name", ["plain", "biased", "qwen3", *UNEVEN])
def test_fewer_bits_are_near(models: dict[str, Path], name: str, precision: Precision, bound: float) -> None:
    plans = mixed_plans()
    wanted = plan_logits(models[name], 1, plans)
    results = [
        plan_logits(
            models[name],
            world,
            plans,
            compute=native_ranks(target, precision=precision, kv_dtype=torch.float16),
        )
        for target in TARGETS
        for world in ((1, 2, 3) if name in UNEVEN else (1, 2))
    ]
    for result in results:
        for found, plain in zip(result, wanted, strict=True):
            error = (found - plain).square().mean().sqrt() / plain.square().mean().sqrt()
            assert len(plain) == 0 or error < bound


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_fewer_bits_do_not_depend_on_uneven_shares(models: dict[str, Path], precision: Precision) -> None:
    """Shares of int8 are whole blocks of 32 inputs, so all ranks together have the bytes of one.

    Sums are rounded elsewhere, and then a few activations get the next code. Cut through blocks, the errors
    would be 0.022 and more.
    """
    model, plans = models["nine heads on three"], mixed_plans()
    wanted = plan_logits(model, 1, plans, compute=native_ranks(precision=precision))
    for world in (2, 3):
        for found, one in zip(
            plan_logits(model, world, plans, compute=native_ranks(precision=precision)), wanted, strict=True
        ):
            error = (found - one).square().mean().sqrt() / one.square().mean().sqrt()
            assert error < 0.015
            assert found.argmax(-1).tolist() == one.argmax(-1).tolist()


def test_variants_of_the_instruction_set_agree_on_int8(models: dict[str, Path]) -> None:
    plans = mixed_plans()
    results = [
        plan_logits(models["plain"], 1, plans, compute=native_ranks(t, precision="int8")) for t in TARGETS
    ]
    for result in results[1:]:
        for found, wanted in zip(result, results[0], strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_damage_shows_in_its_own_row_only(tmp_path: Path, precision: Precision) -> None:
    model = make_llama(tmp_path)
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    blocks = Blocks(64)
    plan = StepPlan(
        step_id=1,
        admit=[new_sequence(1, [1, 2, 3]), new_sequence(2, [4, 7, 5])],
        chunks=[blocks.chunk(1, 0, [1, 2, 3]), blocks.chunk(2, 0, [4, 7, 5])],
    )
    logits = plan_logits(model, 1, [plan], compute=native_ranks(precision=precision))[0]
    assert torch.isfinite(logits[0]).all()
    assert torch.isnan(logits[1]).all()


@pytest.fixture
def shared() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, shared_bytes(3))
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("name", "world"), [("plain", 2), ("nine heads on three", 2), ("five heads on five", 3)]
)
def test_ranks_meet_in_shared_memory(models: dict[str, Path], shared: int, name: str, world: int) -> None:
    """Ranks run as threads; their kernels exchange data over the same shared file as processes do."""
    model, plans = models[name], mixed_plans()
    wanted = plan_logits(model, world, plans, compute=native_ranks())

    def one(rank: int) -> list[Tensor]:
        collectives = SharedMemoryCollectives(shared, rank, world, timeout_s=20)
        with open_checkpoint(model) as checkpoint:
            compute = native_ranks(threads=rank + 1)(checkpoint, read_config(model), collectives, 64)
        runner, rows = Runner(compute), []
        for plan in plans:
            logits = runner.compute_logits(plan)[1]
            rows.append(torch.empty(0) if logits is None else logits.clone())
            collectives.barrier()  # as after sampling, no rank starts the next step early
        assert collectives.seconds > 0
        collectives.close()
        return rows

    with ThreadPoolExecutor(world) as pool:
        first, *others = pool.map(one, range(world))
    assert all(len(row) == 0 for rows in others for row in rows)
    for found, expected in zip(first, wanted, strict=True):
        assert torch.equal(found, expected)


def test_a_missing_rank_is_named(models: dict[str, Path], shared: int) -> None:
    model, loaded = models["plain"], threading.Barrier(2)

    def one(rank: int) -> None:
        collectives = SharedMemoryCollectives(shared, rank, 2, timeout_s=20)
        with open_checkpoint(model) as checkpoint:
            compute = native_ranks()(checkpoint, read_config(model), collectives, 64)
        loaded.wait(20)
        if rank == 0:
            collectives.timeout_s = 0.2
            plan = StepPlan(step_id=1, admit=[new_sequence(1, [1])], chunks=[Blocks(64).chunk(1, 0, [1])])
            with pytest.raises(CollectiveError, match=r"rank 1 did not answer the others within 0\.2 s"):
                Runner(compute).compute_logits(plan)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, range(2)))


def test_threads_end_with_the_computing(models: dict[str, Path]) -> None:
    def helpers() -> int:
        names = [Path(f"/proc/self/task/{thread}/comm") for thread in os.listdir("/proc/self/task")]
        return sum(name.exists() and name.read_text() == "ryz-kernels\n" for name in names)

    gc.collect()
    before, model = helpers(), models["plain"]
    with open_checkpoint(model) as checkpoint:
        compute = native_ranks(threads=3)(checkpoint, read_config(model), SingleRank(), 64)
    assert isinstance(compute, NativeCompute)
    # a thread sets its own name, and is still listed shortly after its end
    wait_for(lambda: helpers() == before + 2, "two threads more")
    compute.close()
    compute.close()
    wait_for(lambda: helpers() == before, "the threads end")
