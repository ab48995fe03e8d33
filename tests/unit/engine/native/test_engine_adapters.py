"""Adapters in the compiled kernels: against models that they are merged into, and bits in any batch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.adapters.packed_adapter import AdapterUnsupported
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.native.operands import MAX_ROWS
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.sequences import PlanError
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.run_config import Precision
from tests.kits.families.merged_adapters import merge, random_adapter
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import (
    UNEVEN,
    ComputeFactory,
    make_llama,
    native_ranks,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import all_models, make_tiny
from tests.kits.families.compiled import relative_error

TARGETS = targets()
VARIANTS = {
    "plain": ("llama", {}),
    "biased": ("llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    **{name: ("llama", changes) for name, changes in UNEVEN.items()},
    "qwen3": ("qwen3", {"head_dim": 24, "intermediate_size": 100}),  # not a multiple of the vector width
}
HALF: list[Precision] = ["bf16", "int8"]
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")
models = all_models(VARIANTS)


def adapted(factory: ComputeFactory, adapters: Sequence[AdapterWeights]) -> ComputeFactory:
    """The same with adapters in the slots from 0 on."""

    def make(
        checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives, num_blocks: int
    ) -> Compute:
        compute = factory(checkpoint, config, collectives, num_blocks)
        for slot, adapter in enumerate(adapters):
            compute.set_adapter(slot, compute.prepare_adapter(adapter))
        return compute

    return make


def mixed_plans(slots: Sequence[int]) -> list[StepPlan]:
    """Whole and chunked prefills beside decodes of three sequences with these slots."""
    a, b, c = (some_tokens(100, seed) for seed in (1, 2, 3))
    cut = Blocks(64).chunk
    return [
        StepPlan(
            step_id=1,
            admit=[new_sequence(1, a[:40], adapter=slots[0]), new_sequence(2, b, adapter=slots[1])],
            chunks=[cut(1, 0, a[:40]), cut(2, 0, b[:33])],
        ),
        StepPlan(
            step_id=2,
            admit=[new_sequence(3, c, adapter=slots[2])],
            chunks=[cut(2, 33, b[33:90]), cut(1, 40, a[40:41]), cut(3, 0, c[:1])],
        ),
        StepPlan(step_id=3, chunks=[cut(3, 1, c[1:60]), cut(1, 41, a[41:42]), cut(2, 90, b[90:91])]),
        StepPlan(step_id=4, chunks=[cut(1, 42, a[42:43]), cut(2, 91, b[91:92]), cut(3, 60, c[60:61])]),
    ]


ORDER = [(1, 2), (2, 1, 3), (3, 1, 2), (1, 2, 3)]  # whose rows the logits of each plan are


def wanted_logits(model: Path, adapters: Sequence[AdapterWeights], directory: Path) -> list[Tensor]:
    """What sequences 1 and 2 have with the two adapters, and sequence 3 with the base."""
    merged = [merge(model, one, directory / str(index)) for index, one in enumerate(adapters)]
    found = [plan_logits(one, 1, mixed_plans([-1] * 3)) for one in (*merged, model)]
    return [
        torch.stack([found[number - 1][step][row] for row, number in enumerate(order)])
        for step, order in enumerate(ORDER)
    ]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("ranks", [(4, 128), (7, 16)])
def test_rows_are_those_of_merged_models(
    models: dict[str, Path], name: str, ranks: tuple[int, int], tmp_path: Path
) -> None:
    model = models[name]
    adapters = [random_adapter(model, rank, rank, mixed=rank == 7) for rank in ranks]
    wanted = wanted_logits(model, adapters, tmp_path)
    for target in TARGETS:
        for threads in (1, 3):
            factory = adapted(native_ranks(target, threads), adapters)
            for found, one in zip(
                plan_logits(model, 1, mixed_plans([0, 1, -1]), compute=factory), wanted, strict=True
            ):
                torch.testing.assert_close(found, one, atol=1e-4, rtol=0)


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("name", ["plain", "qwen3"])
def test_other_precisions_are_as_close_as_the_base(
    models: dict[str, Path], name: str, precision: Precision, tmp_path: Path
) -> None:
    model = models[name]
    adapters = [random_adapter(model, rank, rank) for rank in (8, 16)]
    wanted = wanted_logits(model, adapters, tmp_path)
    base = plan_logits(model, 1, mixed_plans([-1] * 3))
    for target in TARGETS:
        factory = native_ranks(target, 1, precision)
        own = relative_error(plan_logits(model, 1, mixed_plans([-1] * 3), compute=factory), base)
        found = plan_logits(model, 1, mixed_plans([0, 1, -1]), compute=adapted(factory, adapters))
        assert relative_error(found, wanted) < 1.5 * own + 0.002
    assert relative_error(base, wanted) > 0.1
