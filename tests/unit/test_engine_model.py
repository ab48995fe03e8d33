"""The split, batched, paged decoder against transformers and against the plain oracle."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.domain.plan import StepPlan
from services.worker.engine import batch
from services.worker.engine.config import read_config
from services.worker.engine.reference import ReferenceDecoder
from services.worker.engine.weights import open_checkpoint
from tests.engine_support import Blocks, make_llama, new_sequence, plan_logits, transformers_logits

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "all heads": {"num_key_value_heads": 8, "head_dim": 8},
    "other theta": {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_llama(tmp_path_factory.mktemp("model"), **changes) for name, changes in VARIANTS.items()
    }


@cache
def _expected(model: Path, seed: int) -> Tensor:
    return transformers_logits(model, _tokens(60, seed))


def _tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = torch.randint(0, 203, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def _mixed_plans(
    a: list[int], b: list[int], c: list[int]
) -> tuple[list[StepPlan], list[list[tuple[str, int]]]]:
    """Chunked prefill of a, whole prefill of b, then mixed batches; and each plan's (text, length) rows."""
    blocks = Blocks(64)
    cut = blocks.slice
    plans = [
        StepPlan(step_id=1, admit=[new_sequence(1, a[:50])], slices=[cut(1, 0, a[:21], sample=False)]),
        # a chunk that is not the last, a whole prompt, in one step
        StepPlan(
            step_id=2,
            admit=[new_sequence(2, b[:30])],
            slices=[cut(1, 21, a[21:38], sample=False), cut(2, 0, b[:30])],
        ),
        # decode of 2 planned before the last chunk of 1 and the start of a prompt of one token
        StepPlan(
            step_id=3,
            admit=[new_sequence(3, c[:1])],
            slices=[cut(2, 30, b[30:31]), cut(1, 38, a[38:50]), cut(3, 0, c[:1])],
        ),
        # decodes of very different lengths beside a chunk
        StepPlan(
            step_id=4,
            slices=[cut(3, 1, c[1:2]), cut(1, 50, a[50:51]), cut(2, 31, b[31:32])],
        ),
        # sequence 2 ends, its id is used no more; the others go on across a block boundary
        StepPlan(step_id=5, release=[2], slices=[cut(1, 51, a[51:52]), cut(3, 2, c[2:20])]),
    ]
    rows = [
        [],
        [("b", 30)],
        [("b", 31), ("a", 50), ("c", 1)],
        [("c", 2), ("a", 51), ("b", 32)],
        [("a", 52), ("c", 20)],
    ]
    return plans, rows


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_logits_equal_transformers(models: dict[str, Path], name: str, world: int) -> None:
    seeds = {"a": 1, "b": 2, "c": 3}
    plans, rows = _mixed_plans(*(_tokens(60, seed) for seed in seeds.values()))
    expected = {key: _expected(models[name], seed) for key, seed in seeds.items()}
    for found, wanted in zip(plan_logits(models[name], world, plans), rows, strict=True):
        assert len(found) == len(wanted)
        for row, (key, length) in zip(found, wanted, strict=True):
            torch.testing.assert_close(row, expected[key][length - 1], atol=1e-4, rtol=0)


def test_decodes_of_unlike_lengths_apart_give_the_same(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, _ = _mixed_plans(*(_tokens(60, seed) for seed in (1, 2, 3)))
    together = plan_logits(models["plain"], 2, plans)
    monkeypatch.setattr(batch, "PADDING", 0)
    for found, wanted in zip(plan_logits(models["plain"], 2, plans), together, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_oracle_equals_transformers(models: dict[str, Path], name: str) -> None:
    tokens = _tokens(60, 1)
    with open_checkpoint(models[name]) as checkpoint:
        found = ReferenceDecoder(checkpoint, read_config(models[name])).logits(tokens)
    torch.testing.assert_close(found, _expected(models[name], 1), atol=1e-4, rtol=0)


def test_all_ranks_hold_the_same_bits(models: dict[str, Path]) -> None:
    tokens = _tokens(33, 4)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], slices=[Blocks(64).slice(1, 0, tokens)])
    first, second = (plan_logits(models["plain"], 4, [plan])[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_in_parts(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_llama(tmp_path / "half", dtype=dtype, max_shard_size="60KB")
    assert (model / "model.safetensors.index.json").exists()
    tokens = _tokens(20, 6)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], slices=[Blocks(64).slice(1, 0, tokens)])
    found = plan_logits(model, 2, [plan])[0][0]
    torch.testing.assert_close(found, transformers_logits(model, tokens)[-1], atol=1e-4, rtol=0)
