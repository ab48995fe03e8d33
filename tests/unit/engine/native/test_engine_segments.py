"""A token's attention to a long context is the same on one thread, on several, and in a prefill."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.native.build import targets
from services.worker.engine.native.operands import MAX_SPLIT_SPANS, SEGMENT
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_threads import (
    Blocks,
    ComputeFactory,
    native_ranks,
    new_sequence,
    plan_logits,
    some_tokens,
)
from tests.kits.engine.small_models import small_models

TARGETS = targets()
LENGTH = 2 * SEGMENT + 100
NUM_BLOCKS = 200
pytestmark = pytest.mark.skipif(not TARGETS, reason="the kernels are for x86-64 with AVX2")
# more query heads than one task computes; a window whose begin is in another segment; a sink and soft caps
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "one KV head": ("llama", {"num_key_value_heads": 1, "num_attention_heads": 16}),
    "window": ("mistral", {"sliding_window": SEGMENT + 50}),
    "caps": ("gemma2", {"sliding_window": SEGMENT}),
    "sinks": ("gpt_oss", {"sliding_window": SEGMENT, "num_local_experts": 2, "num_experts_per_tok": 1}),
}


SHAPE: dict[str, object] = {"num_hidden_layers": 2, "max_position_embeddings": 4096}
model = small_models({name: (family, SHAPE | changes) for name, (family, changes) in FAMILIES.items()})


def decoded(model: Path, text: list[int], others: int, compute: ComputeFactory) -> Tensor:
    """The logits of the last token, which is decoded beside other sequences."""
    blocks = Blocks(NUM_BLOCKS)
    cuts = [0, 700, SEGMENT + 3, LENGTH - 1]
    plans = [StepPlan(step_id=1, admit=[new_sequence(1, text)])]
    plans += [
        StepPlan(step_id=2, chunks=[blocks.chunk(1, begin, text[begin:end])]) for begin, end in pairwise(cuts)
    ]
    admit = [new_sequence(2 + i, [7, 8]) for i in range(others)]
    beside = [blocks.chunk(2 + i, 0, [7, 8]) for i in range(others)]
    last = blocks.chunk(1, LENGTH - 1, text[-1:])
    plans.append(StepPlan(step_id=3, admit=admit, chunks=[*beside, last]))
    return plan_logits(model, 1, plans, num_blocks=NUM_BLOCKS, compute=compute)[-1][-1]


# `make test` has each target once
PAIRS = [
    pytest.param(target, kv, marks=() if (i + j) % 2 else pytest.mark.models)
    for i, target in enumerate(TARGETS)
    for j, kv in enumerate((torch.float32, torch.float16))
]


@pytest.mark.parametrize(("target", "kv"), PAIRS)
def test_split_over_threads_or_not_the_bits_are_the_same(model: Path, target: str, kv: torch.dtype) -> None:
    text = some_tokens(LENGTH, 5)
    whole = StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[Blocks(NUM_BLOCKS).chunk(1, 0, text)])
    compute = native_ranks(target, kv_dtype=kv)
    reference = plan_logits(model, 1, [whole], num_blocks=NUM_BLOCKS, compute=compute)[-1][-1]
    assert torch.isfinite(reference).all()
    for threads, others in ((1, 0), (2, 0), (3, 1), (2, MAX_SPLIT_SPANS)):
        assert torch.equal(
            decoded(model, text, others, native_ranks(target, threads, kv_dtype=kv)), reference
        )


def test_a_long_context_is_that_of_the_plain_path(model: Path) -> None:
    text = some_tokens(LENGTH, 6)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, text)], chunks=[Blocks(NUM_BLOCKS).chunk(1, 0, text)])
    wanted = plan_logits(model, 1, [plan], num_blocks=NUM_BLOCKS)[-1][-1]
    for target in TARGETS:
        found = decoded(model, text, 0, native_ranks(target, 2))
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
