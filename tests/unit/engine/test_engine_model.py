"""Split, batched and paged decoders, in torch and in kernels, and the reference against transformers."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain import batch_builder
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_threads import (
    COMPUTES,
    UNEVEN,
    Blocks,
    make_llama,
    new_sequence,
    plan_logits,
    some_tokens,
    transformers_logits,
)
from tests.kits.engine.small_models import all_models
from tests.kits.families.models import family_model
from tests.kits.families.step_plans import check_rows, mixed_plans, random_plans

LENGTH = 100  # tokens; longer than the sliding windows and original context lengths of the variants
ORIGINAL = {"max_position_embeddings": 32}
SCALED = {"factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = SCALED | {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = SCALED | {"rope_type": "yarn", "original_max_position_embeddings": 32}

# family, and the fields that differ from `TINY`
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    **{name: ("llama", changes) for name, changes in UNEVEN.items()},
    "all heads": ("llama", {"num_key_value_heads": 8, "head_dim": 8}),
    "two KV heads": ("llama", {"num_key_value_heads": 2, "attention_bias": True}),
    "one KV head": ("llama", {"num_key_value_heads": 1}),
    "other theta": ("llama", {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}),
    "linear": ("llama", ORIGINAL | {"rope_parameters": SCALED | {"rope_type": "linear"}}),
    "dynamic": ("llama", ORIGINAL | {"rope_parameters": SCALED | {"rope_type": "dynamic"}}),
    "llama3": ("llama", {"max_position_embeddings": 128, "rope_parameters": LLAMA3}),
    "yarn": ("llama", {"max_position_embeddings": 128, "rope_parameters": YARN}),
    "yarn, mscale": (
        "qwen2",
        {
            "max_position_embeddings": 128,
            "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False},
        },
    ),
    "yarn, factor": (
        "qwen3",
        {
            "max_position_embeddings": 128,
            "rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5},
        },
    ),
    "mistral": ("mistral", {"sliding_window": 20}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "qwen3, layer types": (
        "qwen3",
        {
            "attention_bias": True,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


# numbers of ranks, also more than the KV heads
WORLDS = dict.fromkeys(VARIANTS, (1, 2, 4)) | {
    "nine heads on three": (1, 2, 3, 9),
    "five heads on five": (1, 2, 3, 4),
}


models = all_models(VARIANTS)


@cache
def _expected(model: Path, seed: int) -> Tensor:
    # With dynamic scaling, transformers' logits depend on how a prompt is cut. Ours equal those of single
    # tokens.
    stepwise = read_config(model).rope.kind == "dynamic"
    return transformers_logits(model, some_tokens(LENGTH, seed), stepwise)


def cut_of_worlds() -> list[Any]:
    """One number of ranks for each variant, in turn; the others are left to `make test-models`."""
    cut = {name: WORLDS[name][turn % len(WORLDS[name])] for turn, name in enumerate(VARIANTS)}
    return [
        pytest.param(name, world, marks=() if world == cut[name] else pytest.mark.models)
        for name in VARIANTS
        for world in WORLDS[name]
    ]


@pytest.mark.parametrize(("name", "world"), cut_of_worlds())
@pytest.mark.parametrize("compute", COMPUTES)
def test_logits_equal_transformers(models: dict[str, Path], name: str, world: int, compute: str) -> None:
    seeds = {"a": 1, "b": 2, "c": 3}
    plans, rows = mixed_plans(*(some_tokens(LENGTH, seed) for seed in seeds.values()))
    expected = {key: _expected(models[name], seed) for key, seed in seeds.items()}
    computed = plan_logits(models[name], world, plans, compute=COMPUTES[compute])
    check_rows(computed, rows, expected, 1e-4)


@pytest.mark.parametrize("name", ["plain", "dynamic", "mistral", "qwen2, windows", "qwen3, layer types"])
@pytest.mark.parametrize(
    ("world", "seed"),
    [(1, 1), (2, 2), *(pytest.param(*one, marks=pytest.mark.models) for one in ((2, 1), (4, 2)))],
)
@pytest.mark.parametrize("compute", COMPUTES)
def test_random_batches_equal_transformers(
    models: dict[str, Path], name: str, world: int, seed: int, compute: str
) -> None:
    seeds = {"a": 1, "b": 2, "c": 3}
    texts = {key: some_tokens(LENGTH, number) for key, number in seeds.items()}
    plans, rows = random_plans(texts, random.Random(seed))
    assert sum(map(len, rows)) > 20
    assert any(plan.release for plan in plans)
    expected = {key: _expected(models[name], number) for key, number in seeds.items()}
    computed = plan_logits(models[name], world, plans, compute=COMPUTES[compute])
    check_rows(computed, rows, expected, 1e-4)


@pytest.mark.parametrize("name", ["plain", "mistral"])
def test_decodes_of_unlike_lengths_apart_give_the_same(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plans, _ = mixed_plans(*(some_tokens(LENGTH, seed) for seed in (1, 2, 3)))
    together = plan_logits(models[name], 2, plans)
    monkeypatch.setattr(batch_builder, "PADDING", 0)
    for found, wanted in zip(plan_logits(models[name], 2, plans), together, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("compute", COMPUTES)
def test_as_many_ranks_as_heads(models: dict[str, Path], compute: str) -> None:
    tokens = some_tokens(LENGTH, 1)[:40]
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[Blocks(64).chunk(1, 0, tokens)])
    for name in ("plain", "qwen3, layer types"):
        found = plan_logits(models[name], 8, [plan], compute=COMPUTES[compute])[0][0]
        torch.testing.assert_close(found, _expected(models[name], 1)[39], atol=1e-4, rtol=0)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_rank_without_token_ids(tmp_path: Path, compute: str) -> None:
    model = make_llama(tmp_path / "small", vocab_size=5, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    tokens = [4, 0, 3, 1, 2, 4, 4]
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[Blocks(64).chunk(1, 0, tokens)])
    # the ranks hold 2, 2, 1 and 0 token ids of the vocabulary
    found = plan_logits(model, 4, [plan], compute=COMPUTES[compute])[0][0]
    torch.testing.assert_close(found, transformers_logits(model, tokens)[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_oracle_equals_transformers(models: dict[str, Path], name: str) -> None:
    tokens = some_tokens(LENGTH, 1)
    with open_checkpoint(models[name]) as checkpoint:
        found = ReferenceDecoder(checkpoint, read_config(models[name])).logits(tokens)
    torch.testing.assert_close(found, _expected(models[name], 1), atol=1e-4, rtol=0)


def test_the_oracle_refuses_what_it_does_not_compute() -> None:
    model = family_model("gemma2")
    with open_checkpoint(model.directory) as checkpoint, pytest.raises(ValueError, match="with transformers"):
        ReferenceDecoder(checkpoint, model.config)


def test_all_ranks_hold_the_same_bits(models: dict[str, Path]) -> None:
    tokens = some_tokens(33, 4)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[Blocks(64).chunk(1, 0, tokens)])
    first, second = (plan_logits(models["plain"], 4, [plan])[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_in_parts(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_llama(tmp_path / "half", dtype=dtype, max_shard_size="60KB")
    assert (model / "model.safetensors.index.json").exists()
    tokens = some_tokens(20, 6)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[Blocks(64).chunk(1, 0, tokens)])
    found = plan_logits(model, 2, [plan])[0][0]
    torch.testing.assert_close(found, transformers_logits(model, tokens)[-1], atol=1e-4, rtol=0)
