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
from services.worker.engine.plain import batch
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_threads import (
    COMPUTES,
    UNEVEN,
    Blocks,
    make_llama,
    make_model,
    new_sequence,
    plan_logits,
    transformers_logits,
)

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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_model(tmp_path_factory.mktemp("model"), family, **changes)
        for name, (family, changes) in VARIANTS.items()
    }


@cache
def _expected(model: Path, seed: int) -> Tensor:
    # With dynamic scaling, transformers' logits depend on how a prompt is cut. Ours equal those of single
    # tokens.
    stepwise = read_config(model).rope.kind == "dynamic"
    return transformers_logits(model, _tokens(LENGTH, seed), stepwise)


def _tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = torch.randint(0, 203, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def _mixed_plans(
    a: list[int], b: list[int], c: list[int]
) -> tuple[list[StepPlan], list[list[tuple[str, int]]]]:
    """Chunked prefill of a, whole prefill of b, then mixed batches.

    Returns:
        The plans, and for each plan the (text, length) of its logits rows.
    """
    blocks = Blocks(64)
    cut = blocks.slice
    plans = [
        StepPlan(step_id=1, admit=[new_sequence(1, a[:90])], slices=[cut(1, 0, a[:21], sample=False)]),
        # a middle chunk and a whole prompt in one step
        StepPlan(
            step_id=2,
            admit=[new_sequence(2, b[:50])],
            slices=[cut(1, 21, a[21:38], sample=False), cut(2, 0, b[:50])],
        ),
        # the decode of 2 before the last chunk of 1 and a prompt of one token
        StepPlan(
            step_id=3,
            admit=[new_sequence(3, c[:1])],
            slices=[cut(2, 50, b[50:51]), cut(1, 38, a[38:90]), cut(3, 0, c[:1])],
        ),
        # decodes at very different lengths
        StepPlan(step_id=4, slices=[cut(3, 1, c[1:2]), cut(1, 90, a[90:91]), cut(2, 51, b[51:52])]),
        # sequence 2 ends and its seq_id is not reused; sequence 3 crosses a block boundary
        StepPlan(step_id=5, release=[2], slices=[cut(1, 91, a[91:92]), cut(3, 2, c[2:20])]),
        # sequence 4 shares blocks that sequence 1 computed
        StepPlan(
            step_id=6,
            admit=[new_sequence(4, a[:70])],
            slices=[cut(1, 92, a[92:93]), blocks.share(1, 4, 64, a[64:70])],
        ),
        # both continue in their own blocks
        StepPlan(step_id=7, slices=[cut(4, 70, a[70:71]), cut(1, 93, a[93:97])]),
    ]
    rows = [
        [],
        [("b", 50)],
        [("b", 51), ("a", 90), ("c", 1)],
        [("c", 2), ("a", 91), ("b", 52)],
        [("a", 92), ("c", 20)],
        [("a", 93), ("a", 70)],
        [("a", 71), ("a", 97)],
    ]
    return plans, rows


@pytest.mark.parametrize(("name", "world"), [(name, world) for name in VARIANTS for world in WORLDS[name]])
@pytest.mark.parametrize("compute", COMPUTES)
def test_logits_equal_transformers(models: dict[str, Path], name: str, world: int, compute: str) -> None:
    seeds = {"a": 1, "b": 2, "c": 3}
    plans, rows = _mixed_plans(*(_tokens(LENGTH, seed) for seed in seeds.values()))
    expected = {key: _expected(models[name], seed) for key, seed in seeds.items()}
    computed = plan_logits(models[name], world, plans, compute=COMPUTES[compute])
    for found, wanted in zip(computed, rows, strict=True):
        assert len(found) == len(wanted)
        for row, (key, length) in zip(found, wanted, strict=True):
            torch.testing.assert_close(row, expected[key][length - 1], atol=1e-4, rtol=0)


def _random_plans(
    texts: dict[str, list[int]], draw: random.Random
) -> tuple[list[StepPlan], list[list[tuple[str, int]]]]:
    """Sequences computed in random chunks; some are preempted and recomputed in blocks that others freed."""
    blocks, next_id = Blocks(64), 0
    running: dict[int, tuple[str, int]] = {}  # seq_id -> (text, number of tokens computed)
    plans, rows = [], []
    for step_id in range(1, 31):
        release = [seq_id for seq_id in running if draw.random() < 0.1 or running[seq_id][1] == LENGTH]
        for seq_id in release:
            blocks.release(seq_id)
            del running[seq_id]
        admit = []
        for text, tokens in texts.items():
            if text not in [name for name, _ in running.values()]:
                next_id += 1
                admit.append(new_sequence(next_id, tokens))
                running[next_id] = (text, 0)
        slices, wanted = [], []
        for seq_id in draw.sample(list(running), draw.randint(1, len(running))):
            text, start = running[seq_id]
            end = min(LENGTH, start + draw.choice((1, 1, 1, 7, 16, 40)))
            sample = draw.random() < 0.7
            slices.append(blocks.slice(seq_id, start, texts[text][start:end], sample))
            running[seq_id] = (text, end)
            wanted += [(text, end)] if sample else []
        plans.append(StepPlan(step_id=step_id, release=release, admit=admit, slices=slices))
        rows.append(wanted)
    return plans, rows


@pytest.mark.parametrize("name", ["plain", "dynamic", "mistral", "qwen2, windows", "qwen3, layer types"])
@pytest.mark.parametrize(("world", "seed"), [(1, 1), (2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("compute", COMPUTES)
def test_random_batches_equal_transformers(
    models: dict[str, Path], name: str, world: int, seed: int, compute: str
) -> None:
    seeds = {"a": 1, "b": 2, "c": 3}
    texts = {key: _tokens(LENGTH, number) for key, number in seeds.items()}
    plans, rows = _random_plans(texts, random.Random(seed))
    assert sum(map(len, rows)) > 20
    assert any(plan.release for plan in plans)
    expected = {key: _expected(models[name], number) for key, number in seeds.items()}
    computed = plan_logits(models[name], world, plans, compute=COMPUTES[compute])
    for found, wanted in zip(computed, rows, strict=True):
        assert len(found) == len(wanted)
        for row, (key, length) in zip(found, wanted, strict=True):
            torch.testing.assert_close(row, expected[key][length - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["plain", "mistral"])
def test_decodes_of_unlike_lengths_apart_give_the_same(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plans, _ = _mixed_plans(*(_tokens(LENGTH, seed) for seed in (1, 2, 3)))
    together = plan_logits(models[name], 2, plans)
    monkeypatch.setattr(batch, "PADDING", 0)
    for found, wanted in zip(plan_logits(models[name], 2, plans), together, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("compute", COMPUTES)
def test_as_many_ranks_as_heads(models: dict[str, Path], compute: str) -> None:
    tokens = _tokens(LENGTH, 1)[:40]
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], slices=[Blocks(64).slice(1, 0, tokens)])
    for name in ("plain", "qwen3, layer types"):
        found = plan_logits(models[name], 8, [plan], compute=COMPUTES[compute])[0][0]
        torch.testing.assert_close(found, _expected(models[name], 1)[39], atol=1e-4, rtol=0)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_rank_without_token_ids(tmp_path: Path, compute: str) -> None:
    model = make_llama(tmp_path / "small", vocab_size=5, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    tokens = [4, 0, 3, 1, 2, 4, 4]
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], slices=[Blocks(64).slice(1, 0, tokens)])
    # the ranks hold 2, 2, 1 and 0 token ids of the vocabulary
    found = plan_logits(model, 4, [plan], compute=COMPUTES[compute])[0][0]
    torch.testing.assert_close(found, transformers_logits(model, tokens)[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_oracle_equals_transformers(models: dict[str, Path], name: str) -> None:
    tokens = _tokens(LENGTH, 1)
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
