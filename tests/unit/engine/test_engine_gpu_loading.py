"""Ranks load and decode on a simulated GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.engine.checkpoint.memory_check import MemoryShort
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.plain_cache import block_bytes
from services.worker.engine.rank import backend, cache_room
from services.worker.engine.rank import rank_process as rank
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import (
    RankConfig,
    RankReady,
)
from tests.kits.engine.decode_plans import EagerCapture, decode_plans
from tests.kits.engine.devices import BF16_ERROR, config, relative_error
from tests.kits.engine.rank_threads import (
    plan_logits,
    run_threads,
)

BF16 = Placement(dtype=torch.bfloat16)
GIB = 2**30


@pytest.fixture
def poses(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Lets the CPU stand in for the GPUs.

    Returns:
        The free memory of each rank's GPU in bytes, by rank; a test may change it.
    """
    free = {0: GIB, 1: GIB}
    ranks: dict[int, int] = {}

    def taken(settings: RankConfig) -> Placement:
        placement = Placement(dtype=torch.bfloat16)
        ranks[id(placement)] = settings.rank
        kept.append(placement)
        return placement

    def memory(placement: Placement) -> tuple[int, int]:
        return free[ranks[id(placement)]], GIB

    kept: list[Placement] = []
    monkeypatch.setattr(Placement, "on_gpu", property(lambda self: self.dtype == torch.bfloat16))
    monkeypatch.setattr(backend, "take_device", taken)
    monkeypatch.setattr(backend, "gpu_memory", memory)
    monkeypatch.setattr(cache_room, "gpu_memory", memory)
    monkeypatch.setattr(backend, "CudaCapture", lambda device: EagerCapture())
    return free


def loaded(model: Path, world: int, **changes: Any) -> list[tuple[Any, RankReady]]:
    def one(collectives: Collectives) -> tuple[Any, RankReady]:
        return rank.load(
            config(model, rank=collectives.rank, tensor_parallel=world, **changes), collectives, 0.0
        )

    return [one(SingleRank())] if world == 1 else run_threads(world, one)


def test_ranks_load_and_decode_as_on_a_gpu(model: Path, poses: dict[int, int]) -> None:
    plans = decode_plans()
    ((runner, ready),) = loaded(model, 1, kv_cache_tokens=64 * 16)
    assert (ready.info.kernels, ready.kv_format, ready.num_blocks) == ("plain cuda bf16", "bf16", 64)
    found = [runner.compute_logits(plan)[1] for plan in plans]
    assert relative_error(found, plan_logits(model, 1, plans)) < BF16_ERROR


def test_the_fullest_gpu_decides_for_all(model: Path, poses: dict[int, int]) -> None:
    each = block_bytes(read_config(model), 0, 2, BF16)
    poses[1] = 2**20
    ready = [said for _, said in loaded(model, 2, kv_memory_share=0.5)]
    assert [said.num_blocks for said in ready] == [2**19 // each] * 2
    assert ready[0].kv_cache_bytes == 2**19 // each * each


def test_memory_that_went_meanwhile_is_refused(
    model: Path, poses: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "require_gpu_room", lambda *_: None)
    poses[0] = 1000
    with pytest.raises(MemoryShort, match="kv_cache_tokens=4096 needs"):
        loaded(model, 1, kv_cache_tokens=4096)


def test_int8_is_refused_before_anything_is_read(model: Path, poses: dict[int, int]) -> None:
    with pytest.raises(ModelError, match="precision=int8 is for CPUs"):
        loaded(model, 1, precision="int8")


def test_step_plans_without_chunks_are_nothing(model: Path, poses: dict[int, int]) -> None:
    ((runner, _),) = loaded(model, 1, kv_cache_tokens=1024)
    assert runner.run_step(StepPlan(step_id=1)).sampled == []
