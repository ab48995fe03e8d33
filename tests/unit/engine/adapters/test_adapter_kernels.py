"""Adapters in the compiled kernels: against models that they are merged into, and bits in any batch."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.adapters.description import AdapterError
from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.native.operands import MAX_ROWS
from services.worker.engine.rank.compute import Compute
from services.worker.engine.rank.sequences import PlanError
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from tests.kits.adapters.comparisons import RANKS, SLOTS, check_bits, check_mixed_adapters, check_same_bits
from tests.kits.adapters.comparisons import TARGETS as PEFT_TARGETS
from tests.kits.adapters.merged_adapters import merge, random_adapter
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import (
    UNEVEN,
    ComputeFactory,
    native_compute,
    native_ranks,
    plain_compute,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import all_models, make_tiny
from tests.kits.families.compiled import FORMS, compiled, relative_error
from tests.kits.families.step_plans import NUM_BLOCKS

TARGETS = targets()
BASE = [-1] * 3
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "biased": ("llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    **{name: ("llama", changes) for name, changes in UNEVEN.items()},
    "qwen3": ("qwen3", {"head_dim": 24, "intermediate_size": 100}),  # not a multiple of the vector width
}
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
    found = [plan_logits(one, 1, mixed_plans(BASE)) for one in (*merged, model)]
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


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("name", ["plain", "qwen3"])
def test_other_precisions_are_as_close_as_their_base(
    models: dict[str, Path], name: str, precision: Precision, tmp_path: Path
) -> None:
    model = models[name]
    adapters = [random_adapter(model, rank, rank) for rank in (8, 16)]
    wanted = wanted_logits(model, adapters, tmp_path)
    base = plan_logits(model, 1, mixed_plans(BASE))
    for target in TARGETS:
        factory = native_ranks(target, 1, precision)
        own = relative_error(plan_logits(model, 1, mixed_plans(BASE), compute=factory), base)
        found = plan_logits(model, 1, mixed_plans([0, 1, -1]), compute=adapted(factory, adapters))
        assert relative_error(found, wanted) < 1.5 * own + 0.002
    assert relative_error(base, wanted) > 0.1


def test_codes_with_adapters_are_near_the_floats_of_the_file(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", hidden_size=96, intermediate_size=192, head_dim=16)
    coded = write_gguf(model, tmp_path / "coded.gguf", "Q8_0")
    adapters = [random_adapter(coded, rank, rank) for rank in (8, 16)]
    plain = plan_logits(coded, 1, mixed_plans([0, 1, -1]), compute=adapted(plain_compute, adapters))
    for target in TARGETS:
        factory = adapted(native_ranks(target, 2, "codes"), adapters)
        found = plan_logits(coded, 1, mixed_plans([0, 1, -1]), compute=factory)
        assert relative_error(found, plain) < 0.06  # activations have 8 bits
    assert relative_error(plan_logits(coded, 1, mixed_plans(BASE)), plain) > 0.1


@pytest.mark.parametrize("family", list(PEFT_TARGETS))
def test_logits_equal_those_of_peft(family: str) -> None:
    at = list(PEFT_TARGETS).index(family)
    check_mixed_adapters(family, RANKS[at % 4], 1 + at // 4 % 2, native_compute)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("family", "world"), [("llama", 1), ("phi3", 2)])
def test_bits_do_not_depend_on_who_shares_the_batch(family: str, world: int, form: str) -> None:
    for target in TARGETS:
        check_same_bits(family, 16, world, compiled(FORMS[form], target, threads=2))


def test_bits_beside_codes_do_not_depend_on_who_shares_the_batch(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", hidden_size=96, intermediate_size=192, head_dim=16)
    coded = write_gguf(model, tmp_path / "coded.gguf", "Q8_0")
    adapters = [random_adapter(coded, 8, 1)] * SLOTS["b"] + [random_adapter(coded, 16, 2)]
    for target in TARGETS:
        factory = adapted(native_ranks(target, 2, "codes"), adapters)
        check_bits(partial(plan_logits, coded, 1, num_blocks=NUM_BLOCKS, compute=factory))


def test_a_prompt_beyond_one_pass_has_the_same_bits_on_any_threads(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path, max_position_embeddings=2048)
    adapters = [random_adapter(model, rank, rank) for rank in (8, 24)]
    long, short = some_tokens(MAX_ROWS + 90, 1), some_tokens(20, 2)
    blocks = Blocks(128)
    plan = StepPlan(
        step_id=1,
        admit=[new_sequence(1, short, adapter=1), new_sequence(2, long, adapter=0), new_sequence(3, short)],
        chunks=[blocks.chunk(1, 0, short), blocks.chunk(2, 0, long), blocks.chunk(3, 0, short)],
    )
    for target in TARGETS:
        rows = [
            plan_logits(model, 1, [plan], 128, adapted(native_ranks(target, threads), adapters))[0]
            for threads in (1, 2, 3)
        ]
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[0], rows[2])
        for row, (tokens, slot) in zip(rows[0], ((short, 1), (long, 0), (short, -1)), strict=True):
            apart = Blocks(128)
            pieces = [tokens[begin : begin + 100] for begin in range(0, len(tokens), 100)]
            plans = [StepPlan(step_id=1, admit=[new_sequence(1, tokens, adapter=slot)])]
            plans += [
                StepPlan(step_id=2, chunks=[apart.chunk(1, 100 * index, piece)])
                for index, piece in enumerate(pieces)
            ]
            alone = plan_logits(model, 1, plans, 128, adapted(native_ranks(target), adapters))[-1]
            assert torch.equal(alone[0], row)


def test_an_adapter_that_bf16_holds_takes_half_the_memory_beside_floats(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model")
    exact = random_adapter(model, 16, 1)
    assert exact.head is not None
    rounded = AdapterWeights(
        {key: _rounded(pair) for key, pair in exact.layers.items()}, _rounded(exact.head)
    )
    wanted = wanted_logits(model, [rounded, exact], tmp_path)
    for target in TARGETS:
        with open_checkpoint(model) as checkpoint:
            compute = native_ranks(target)(checkpoint, read_config(model), SingleRank(), 64)
        small, large = (compute.prepare_adapter(one).num_bytes for one in (rounded, exact))
        assert isinstance(compute, NativeCompute)
        compute.close()
        assert small < 0.6 * large
        factory = adapted(native_ranks(target), [rounded, exact])
        found = plan_logits(model, 1, mixed_plans([0, 1, -1]), compute=factory)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def _rounded(pair: LowRank) -> LowRank:
    return LowRank(pair.down.bfloat16().float(), pair.up.bfloat16().float())


def test_a_slot_without_an_adapter_is_a_contradicting_plan(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path)
    factory = adapted(native_compute, [random_adapter(model, 4, 1)])
    text = some_tokens(5, 1)
    for slot in (1, 100):
        plan = StepPlan(
            step_id=1, admit=[new_sequence(1, text, adapter=slot)], chunks=[Blocks(64).chunk(1, 0, text)]
        )
        with pytest.raises(PlanError, match=f"no adapter in slot {slot}"):
            plan_logits(model, 1, [plan], compute=factory)


def test_matrices_that_the_kernels_do_not_have_are_refused(tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path)
    pair = LowRank(torch.zeros(4, 64), torch.zeros(64, 4))
    with open_checkpoint(model) as checkpoint:
        compute = native_compute(checkpoint, read_config(model), SingleRank(), 64)
    assert isinstance(compute, NativeCompute)
    with pytest.raises(AdapterError, match=r"mlp.router of layer 0"):
        compute.prepare_adapter(AdapterWeights({(0, "mlp.router"): pair}))
    with pytest.raises(AdapterError, match="were expected"):
        compute.prepare_adapter(AdapterWeights({(0, "mlp.down_proj"): LowRank(pair.down[:, :7], pair.up)}))
    compute.close()
