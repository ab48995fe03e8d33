"""Mixtures of experts in the kernels: the router's choice, and the same bits in any batch."""

import ctypes
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.engine.config.layer import ExpertsConfig, MlpConfig
from services.worker.engine.native.build import targets
from services.worker.engine.native.experts.ops import SlotBuffers
from services.worker.engine.native.experts.packed_experts import (
    PackedExperts,
    StackedLinear,
    unsupported_experts,
)
from services.worker.engine.native.experts.structs import RouteOp, SortRowsOp
from services.worker.engine.native.library import kernels
from services.worker.engine.native.operands import FLOATS
from services.worker.engine.native.packed_weights import pack
from services.worker.engine.native.program import Program
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.plain.layers.experts import choose_experts
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.run_config import Precision
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import native_ranks, plan_logits
from tests.kits.families.models import family_model, text
from tests.kits.families.step_plans import NUM_BLOCKS, mixed_plans, random_plans

TARGETS = targets()
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")
BASE = ExpertsConfig(count=20, chosen=3, expert=MlpConfig(inner=8), scale=1.7)
RULES = {
    "softmax": BASE,
    "softmax, normalized": replace(BASE, normalize=True),
    "chosen logits": replace(BASE, scoring="softmax_chosen", router_bias=True),
    "sigmoid": replace(BASE, scoring="sigmoid", normalize=True, selection_bias=True),
    "largest of groups": replace(BASE, groups=5, chosen_groups=2),
    "two largest of groups": replace(
        BASE, scoring="sigmoid", groups=4, chosen_groups=2, group_score="top2", selection_bias=True
    ),
}
MIXTURES = ("qwen2_moe", "gpt_oss")  # a shared MLP with a gate; biases


def _route(config: ExpertsConfig, logits: Tensor, bias: Tensor | None) -> tuple[SlotBuffers, list[Tensor]]:
    """Runs the router's two ops; returns what they wrote down, and its arrays."""
    library, rows = kernels(), len(logits)
    one = pack(library, torch.zeros(config.count, 4), precision="fp32")
    stacked = StackedLinear(first=one, weights=one.weights, bias=None)
    experts = PackedExperts(config=config, router=one, selection_bias=bias, up=stacked, down=stacked)
    own = SlotBuffers.allocate(experts, 4, FLOATS)
    own.logits[:rows, : config.count] = logits
    program = Program()
    rule, stride = experts.rule, own.logits.shape[1]
    program.append(RouteOp(rule=rule, slots=own.slots, logits=own.logits.data_ptr(), stride=stride), own)
    program.append(SortRowsOp(slots=own.slots))
    pool, times = library.new_thread_pool(2, False), (ctypes.c_int64 * 4)()
    ops = program.whole(barriers=False)
    library.run_program(pool, None, ops, len(ops), ForwardBatch(num_rows=rows), times, None, None)
    library.free_thread_pool(pool)
    return own, list(own.memory)


def _logits(config: ExpertsConfig, rows: int) -> Tensor:
    return 2 * torch.randn(rows, config.count, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("name", RULES)
def test_the_router_chooses_as_the_plain_path_does(name: str) -> None:
    config, rows = RULES[name], 37
    logits = _logits(config, rows)
    bias = torch.linspace(0.3, -0.3, config.count) if config.selection_bias else None
    padded_bias = None if bias is None else torch.cat((bias, torch.zeros(12)))
    _, (choices, slots, slot_rows, owners, begins, active, shares) = _route(config, logits, padded_bias)
    wanted, weights = choose_experts(logits, config, bias)
    count = rows * config.chosen
    assert choices[:count].view(rows, -1).tolist() == wanted.tolist()
    torch.testing.assert_close(shares[:count].view(rows, -1), weights, atol=1e-6, rtol=1e-6)
    # slots in the order of experts, then of rows
    order = sorted((int(expert), row) for row, experts in enumerate(wanted) for expert in experts)
    assert list(zip(owners[:count].tolist(), slot_rows[:count].tolist(), strict=True)) == order
    for index, slot in enumerate(slots[:count].tolist()):
        assert order[slot] == (int(choices[index]), index // config.chosen)
    numbers = np.bincount([expert for expert, _ in order], minlength=config.count)
    assert begins.diff().tolist() == numbers.tolist()
    assert active[1 : 1 + int(active[0])].tolist() == np.flatnonzero(numbers).tolist()


def test_of_equal_scores_the_lower_number_is_taken() -> None:
    logits = torch.tensor([[0.0, 1.0] * 10, [0.0] * 20, [2.0] + [3.0] * 19])
    _, (choices, *_) = _route(BASE, logits, None)
    assert choices[:9].view(3, 3).tolist() == [[1, 3, 5], [0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize("name", RULES)
def test_damaged_logits_choose_something_and_stay_in_their_row(name: str) -> None:
    config = RULES[name]
    logits = _logits(config, 3)
    logits[1] = torch.nan
    bias = torch.zeros(32) if config.selection_bias else None
    _, (choices, *_, shares) = _route(config, logits, bias)
    chosen = choices[:9].view(3, 3)
    assert all(len(set(row)) == 3 and set(row) <= set(range(20)) for row in chosen.tolist())
    assert shares[:9].view(3, 3).isfinite().all(-1).tolist() == [True, False, True]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", MIXTURES)
def test_same_bits_in_any_batch(name: str, precision: Precision) -> None:
    """A text alone, in pieces beside others, and on several threads."""
    model, tokens = family_model(name), text("a")

    def alone() -> list[StepPlan]:
        part = Blocks(NUM_BLOCKS).chunk(1, 0, tokens[:97])
        return [StepPlan(step_id=1, admit=[new_sequence(1, tokens[:97])], chunks=[part])]

    plans, rows = mixed_plans(*(text(key) for key in "abc"))
    assert rows[-1][-1] == ("a", 97)
    for target in TARGETS:
        reference = plan_logits(model.directory, 1, alone(), NUM_BLOCKS, native_ranks(target, 1, precision))[
            -1
        ][-1]
        assert reference.isfinite().all()
        for threads in (1, 3):
            found = plan_logits(
                model.directory, 1, plans, NUM_BLOCKS, native_ranks(target, threads, precision)
            )
            assert torch.equal(found[-1][-1], reference)


@pytest.mark.parametrize("name", MIXTURES)
def test_int8_is_near(name: str) -> None:
    model = family_model(name)
    plans, rows = random_plans({key: text(key) for key in "abc"}, random.Random(5))
    for world in (1, 3):
        found = plan_logits(model.directory, world, plans, NUM_BLOCKS, native_ranks(precision="int8"))
        errors, sizes = list[Tensor](), list[Tensor]()
        for logits, wanted in zip(found, rows, strict=True):
            for row, (key, length) in zip(logits, wanted, strict=True):
                plain = model.logits[key][length - 1]
                errors.append((row - plain).square().mean())
                sizes.append(plain.square().mean())
        assert (sum(errors) / sum(sizes)) ** 0.5 < 0.1


def test_what_is_not_computed_is_named() -> None:
    assert unsupported_experts(BASE) is None
    assert "1024 experts, not 2000" in str(unsupported_experts(replace(BASE, count=2000)))
    shared = MlpConfig(inner=8, down_bias=True)
    assert "bias" in str(unsupported_experts(replace(BASE, shared=shared)))
