"""Published configs, in old and new spellings, are read as transformers reads them; others are refused."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.engine.checkpoint.model_size import weight_share
from services.worker.engine.checkpoint.rank_shares import share_of_heads, share_of_mlp, share_of_vocabulary
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.reference import amplitude, frequency
from services.worker.engine.plain.rope import RotaryEmbedding
from tests.kits.engine.published_configs import LLAMA, QWEN2, QWEN3, YARN_SCALING

MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}

# published configs, each with its expected context length in tokens
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "llama 2": (LLAMA | {"max_position_embeddings": 4096, "rope_scaling": None, "pretraining_tp": 1}, 4096),
    "llama, nothing said": (LLAMA, 2048),
    "llama, linear": (
        LLAMA | {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}},
        16384,
    ),
    "llama, dynamic": (
        LLAMA | {"max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        4096,
    ),
    "llama 3.1": (
        LLAMA
        | {
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3_SCALING,
        },
        131072,
    ),
    "mistral 0.1": (MISTRAL | {"rope_theta": 10000.0}, 32768),
    "mistral 0.3": (MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None, "head_dim": 128}, 32768),
    "mistral, nothing said": (
        LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
        131072,
    ),
    "qwen2": (QWEN2, 32768),
    "qwen2, windows": (QWEN2 | {"use_sliding_window": True}, 32768),
    "qwen2, windows everywhere": (
        QWEN2 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0},
        32768,
    ),
    "qwen2.5, yarn": (QWEN2 | {"rope_scaling": YARN_SCALING}, 131072),
    "qwen3": (QWEN3 | {"rope_scaling": None, "max_window_layers": 4}, 32768),
    "qwen3, yarn, new spelling": (
        QWEN3 | {"rope_parameters": YARN_SCALING | {"rope_type": "yarn", "rope_theta": 5e5}},
        131072,
    ),
    "qwen3, layer types": (
        QWEN3
        | {
            "use_sliding_window": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
        32768,
    ),
}


def _write(directory: Path, raw: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(tmp_path: Path, name: str) -> None:
    from transformers import AutoConfig  # noqa: PLC0415 (slow to import)

    raw, context_length = PUBLISHED[name]
    config = read_config(_write(tmp_path, raw))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert config.context_length == context_length
    assert config.num_kv_heads == theirs.num_key_value_heads
    assert config.head_dim == (getattr(theirs, "head_dim", None) or 4096 // 32)
    assert config.tied_embeddings == theirs.tie_word_embeddings
    assert config.final_norm.eps == theirs.rms_norm_eps
    window = getattr(theirs, "sliding_window", None) or 0
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * config.num_layers
    assert config.windows == tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    _compare_rotary(config, theirs)


def _compare_rotary(config: ModelConfig, theirs: Any) -> None:
    family = theirs.model_type
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    rotary = getattr(module, f"{family.capitalize()}RotaryEmbedding")(theirs)
    ours = RotaryEmbedding(config.rope, config.context_length)
    half, far = config.head_dim // 2, config.context_length - 1
    # Ascending, because transformers' dynamic scaling keeps state between calls. transformers rounds the
    # base of dynamic scaling, hence the wider tolerance.
    positions = [0, 1, 1000, far // 2, far]
    tolerance = 1e-3 if config.rope.kind == "dynamic" else 1e-4
    for position, cos, sin in zip(positions, *ours.at(torch.tensor(positions)), strict=True):
        wanted_cos, wanted_sin = rotary(torch.empty(1), torch.tensor([[position]]))
        torch.testing.assert_close(cos[0], wanted_cos[0, 0], atol=tolerance, rtol=0)
        torch.testing.assert_close(sin[0, half:], wanted_sin[0, 0, half:], atol=tolerance, rtol=0)
        torch.testing.assert_close(sin[0, :half], -wanted_sin[0, 0, half:], atol=tolerance, rtol=0)
    for position, cos, sin in zip(range(1001), *ours.table(1001), strict=True):
        if position % 100 == 0:
            angles = torch.tensor(
                [position * frequency(config.rope, pair, half, position) for pair in range(half)]
            )
            torch.testing.assert_close(cos, angles.cos() * amplitude(config.rope), atol=5e-4, rtol=0)
            torch.testing.assert_close(sin, angles.sin() * amplitude(config.rope), atol=5e-4, rtol=0)


def test_positions_end_with_the_context(tmp_path: Path) -> None:
    config = read_config(_write(tmp_path, LLAMA))
    rotary = RotaryEmbedding(config.rope, config.context_length)
    with pytest.raises(ValueError, match="2049 positions of a context of 2048"):
        rotary.table(2049)


def test_yarn_by_its_two_lengths(tmp_path: Path) -> None:
    lengths = {"type": "yarn", "factor": None, "original_max_position_embeddings": 8192}
    config = read_config(_write(tmp_path, QWEN2 | {"rope_scaling": lengths}))
    assert (config.rope.factor, config.context_length) == (4.0, 32768)


def test_heads_of_ranks(tmp_path: Path) -> None:
    config = read_config(_write(tmp_path, QWEN2))  # 32 heads, 4 KV heads
    for world, wanted in {1: [4], 2: [2, 2], 3: [2, 1, 1], 4: [1] * 4, 8: [1] * 8, 16: [1] * 16}.items():
        config.check_split(world)
        ranks = [config.kv_heads_of(rank, world) for rank in range(world)]
        assert [len(heads) for heads in ranks] == wanted
        for rank, heads in enumerate(ranks):
            # 8 query heads share one KV head
            assert {query // 8 for query in config.heads_of(rank, world)} == set(heads)


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (LLAMA, {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5}}, "partial"),
        (LLAMA, {"hidden_act": "quick_gelu"}, "hidden_act"),
        (LLAMA, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (LLAMA, {"attention_sinks": True}, "attention_sinks"),
        (LLAMA, {"num_local_experts": 8}, "num_local_experts"),
        (LLAMA, {"sliding_window": 128}, "sliding_window"),
        (LLAMA, {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (LLAMA, {"hidden_size": 4100}, "hidden_size"),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "factor": 0.5}},
            r"rope_scaling\.factor` must be 1 or more",
        ),
        (LLAMA, {"rope_scaling": {"type": ["linear"]}}, "not supported; known: default, linear"),
        (LLAMA, {"rope_scaling": {"full_attention": {"rope_type": "default"}}}, "rope_scaling"),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, "head_dim"),
        (LLAMA, {"rope_scaling": LLAMA3_SCALING | {"high_freq_factor": 0.5}}, "high_freq_factor"),
        (LLAMA, {"rope_scaling": YARN_SCALING | {"beta_fast": 0.5}}, "beta_fast"),
        (LLAMA, {"rope_scaling": {"type": "yarn"}}, r"rope_scaling\.factor"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (MISTRAL, {"sliding_window": 0}, "sliding_window"),
        (MISTRAL, {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2}, "layer_types"),
        (QWEN2, {"layer_types": ["full_attention"] * 3}, "layer_types"),
        (QWEN2, {"layer_types": ["full_attention"] * 3 + ["chunked"]}, "layer_types"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        (QWEN2, {"max_window_layers": -1}, "max_window_layers"),
        (QWEN3, {"architectures": [["Qwen3ForCausalLM"]]}, "is not supported"),
    ],
)
def test_what_is_not_done_is_refused(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    read_config(_write(tmp_path, base))
    with pytest.raises(ModelError, match=named) as refusal:
        read_config(_write(tmp_path, base | changes))
    assert str(tmp_path / "config.json") in str(refusal.value)


def test_splits_of_few_kv_heads(tmp_path: Path) -> None:
    few = {"num_attention_heads": 24, "num_key_value_heads": 6, "intermediate_size": 48, "head_dim": 64}
    config = read_config(_write(tmp_path, LLAMA | few))
    config.check_split(4)
    with pytest.raises(ModelError, match=r"=8 exceeds .*=6 and .* divides .*=24; .*: 1 to 6, 12, 24$"):
        config.check_split(8)
    narrow = read_config(_write(tmp_path, LLAMA | few | {"intermediate_size": 2}))
    with pytest.raises(ModelError, match=r"=3 exceeds the model's intermediate_size=2; .*: 1, 2$"):
        narrow.check_split(3)


@pytest.mark.parametrize("world", range(1, 8))
@pytest.mark.parametrize("size", [7, 96, 1536, 1000])
def test_shares_are_ranges_side_by_side_of_about_one_size(size: int, world: int) -> None:
    for share, unit in (
        (share_of_heads, 1),
        (share_of_mlp, 32 if size % 32 == 0 and size // 32 >= world else 1),
        (share_of_vocabulary, 1),
    ):
        parts = [share(size, rank, world) for rank in range(world)]
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == size
        sizes = [len(part) for part in parts]
        assert all(count % unit == 0 for count in sizes)
        assert max(sizes) == -(-size // unit // world) * unit
        if share is not share_of_vocabulary:
            assert max(sizes) - min(sizes) <= unit
            assert sizes == sorted(sizes, reverse=share is share_of_heads)


def test_what_the_ranks_of_a_host_hold(tmp_path: Path) -> None:
    smol = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "num_hidden_layers": 30,
    }
    config = read_config(_write(tmp_path, LLAMA | smol))
    assert [config.held_kv_heads(ranks, 2) for ranks in (1, 2)] == [2, 3]
    assert weight_share(config, range(3), 3) == weight_share(config, range(2), 2) == 1
    assert 0.51 < weight_share(config, [0], 2) < 0.53
    assert config.held_kv_heads(9, 9) == 9
    assert weight_share(config, range(9), 9) > 1  # keys and values of each head on three ranks
