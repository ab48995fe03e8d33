"""The memory estimate counts what the plan makes larger, and a refusal names parts and remedies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training.finetune.errors import FinetuneError
from training.finetune.memory_estimate import CODE_BITS, ModelShape, estimate, require_room
from training.finetune.plan import FinetunePlan

SHAPE = ModelShape(
    linear=100_000_000, other=30_000_000, layers=30, hidden=576, inner=1536, attention=960, vocab=49152,
    adapted=300_000, adapted_inputs=120_000,
)  # fmt: skip


def plan(**changed: Any) -> FinetunePlan:
    where = Path("nowhere")
    return FinetunePlan(base=where, base_name="base", data=where, output=where, **changed)


def test_the_parts_follow_the_plan() -> None:
    full, half = (
        estimate(SHAPE, plan(base_bits=bits), bf16=bits < 32, length=1000, learned=300) for bits in (32, 16)
    )
    assert full.base == 4 * 130_000_000 == 2 * half.base
    assert full.activations > half.activations
    assert full.adapter == half.adapter == 4 * 5 * 16 * 300_000
    assert full.total == sum(full.parts().values())
    twice = estimate(SHAPE, plan(base_bits=16, rank=32), bf16=True, length=2000, learned=600)
    assert twice.adapter == 2 * half.adapter
    assert twice.activations == pytest.approx(2 * half.activations)
    assert twice.logits == 2 * half.logits
    every = estimate(replace(SHAPE, all_logits=True), plan(base_bits=16), bf16=True, length=1000, learned=300)
    assert every.logits * 3 == half.logits * 10
    again = estimate(SHAPE, plan(base_bits=16, recompute=True), bf16=True, length=1000, learned=300)
    assert again.activations < half.activations / 5


def test_codes_count_what_is_held_while_the_weights_are_read() -> None:
    found = estimate(SHAPE, plan(base_bits=4), bf16=True, length=1000, learned=300)
    assert found.base == 2 * 130_000_000 > 100_000_000 * CODE_BITS / 8 + 2 * 30_000_000


def test_what_does_not_fit_is_refused_with_remedies() -> None:
    found = estimate(SHAPE, plan(base_bits=32), bf16=False, length=1000, learned=300)
    require_room(found, found.total, plan(base_bits=32))
    with pytest.raises(FinetuneError) as refused:
        require_room(found, found.total - 1, plan(base_bits=32))
    text = str(refused.value)
    assert found.text() in text
    assert "take --base-bits 16, --recompute, a --length below 1024, or end other programs" in text
    with pytest.raises(FinetuneError, match=r"free: take a --length below 512, or end"):
        require_room(found, 0, plan(base_bits=4, recompute=True, length=512))
