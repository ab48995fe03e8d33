"""Metadata become the fields of a Hugging Face config, and what is not known is refused by name."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from services.worker.gguf.config import hf_config
from services.worker.gguf.gguf_file import GgufFile, GgufTensor
from services.worker.gguf.header_bytes import BadGguf

PATH = Path("m.gguf")
LLAMA: dict[str, Any] = {
    "block_count": 2,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 112,
    "attention.head_count": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 100,
}


def config_of(
    architecture: str = "llama", tensors: dict[str, GgufTensor] | None = None, **changes: Any
) -> dict[str, Any]:
    """The config of the smallest model with changes; dots of a key are written as two underscores."""
    keys = LLAMA | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}
    return hf_config(GgufFile(PATH, architecture, metadata | {"general.name": "x"}, tensors or {}))


def tensor(name: str, *shape: int) -> dict[str, GgufTensor]:
    return {name: GgufTensor(PATH, name, GGMLQuantizationType.F32, shape, 0, 4 * math.prod(shape))}


def test_a_model_without_choices_has_the_defaults_of_llama() -> None:
    assert config_of() == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": 100,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("llama", {"attention__head_count_kv": 2}, {"num_key_value_heads": 2}),
        ("llama", {"attention__key_length": 16, "attention__value_length": 16}, {"head_dim": 16}),
        ("llama", {"rope__freq_base": 5e5, "rope__dimension_count": 8}, {"rope_theta": 5e5}),
        ("llama", {"rope__dimension_count": 4}, {"partial_rotary_factor": 0.5}),
        (
            "llama",
            {"attention__sliding_window": 512},
            {"architectures": ["MistralForCausalLM"], "sliding_window": 512},
        ),
        ("llama", {"rope__scaling__factor": 4.0}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("llama", {"rope__scale_linear": 2.0}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", {"expert_count": 0, "attention__causal": True}, {}),
        ("qwen2", {"rope__scaling__type": "none"}, {"architectures": ["Qwen2ForCausalLM"]}),
        ("qwen3", {"attention__key_length": 128, "attention__value_length": 128}, {"head_dim": 128}),
    ],
)
def test_keys_have_their_position(
    architecture: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = config_of(architecture, **changes)
    assert expected.items() <= found.items()
    assert ("rope_scaling" in found) == ("rope_scaling" in expected)


def test_yarn_multiplies_its_own_attention_factor() -> None:
    yarn: dict[str, Any] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    original: dict[str, Any] = {"rope__scaling__original_context_length": 1024}
    plain = config_of(**yarn, **original)["rope_scaling"]
    assert (plain["factor"], plain["original_max_position_embeddings"]) == (4.0, 1024)
    assert "attention_factor" not in plain
    scaled = config_of(**yarn, rope__scaling__attn_factor=0.5)["rope_scaling"]
    assert scaled["attention_factor"] == pytest.approx(0.5 * (0.1 * math.log(4) + 1))


def test_tensors_say_what_is_tied_and_biased() -> None:
    found = config_of(tensors=tensor("output.weight", 100, 64) | tensor("blk.0.attn_q.bias", 64))
    assert (found["tie_word_embeddings"], found["attention_bias"], found["mlp_bias"]) == (False, True, False)
    assert config_of(tensors=tensor("token_embd.weight", 128, 64))["vocab_size"] == 128


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("rwkv7", {}, "'rwkv7' is not supported; choose a model of llama, qwen2, qwen3"),
        ("llama\n" * 100, {}, "is not supported"),
        ("llama", {"block_count": None}, r"llama\.block_count` must be an integer from 1 to 1024, got None"),
        ("llama", {"block_count": 2**40}, "block_count"),
        ("llama", {"block_count": True}, "block_count"),
        ("llama", {"attention__head_count": [8, 8]}, "head_count` must be an integer"),
        ("llama", {"attention__head_count": 0}, "head_count"),
        ("llama", {"attention__layer_norm_rms_epsilon": math.nan}, "epsilon"),
        ("llama", {"attention__layer_norm_rms_epsilon": None}, "epsilon"),
        ("llama", {"attention__value_length": 16}, "value_length` must be 8"),
        ("llama", {"rope__freq_base": math.inf}, "freq_base"),
        ("llama", {"rope__scaling__type": "longrope"}, "none, linear or yarn"),
        ("llama", {"rope__scaling__type": 7}, "rope.scaling.type"),
        ("qwen2", {"expert_count": 8}, "expert_count` must be 0"),
        ("llama", {"expert_count": [0]}, "expert_count"),
        ("llama", {"attention__causal": False}, "attention.causal"),
        ("llama", {"attention__temperature_scale": 0.1}, r"gives `llama\.attention\.temperature_scale`"),
        ("qwen2", {"attention__sliding_window": 4096}, "sliding_window` must be 0"),
        (
            "qwen3",
            {"deepstack": [1] * 1000, "x": 1, "y": 1, "z": 1},
            "`qwen3.deepstack`, `qwen3.x`, `qwen3.y`, ",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(architecture: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadGguf, match=named) as error:
        config_of(architecture, **changes)
    assert str(error.value).startswith("m.gguf")
    assert "\n" not in str(error.value)


def divisors(path: Path, values: list[float]) -> dict[str, GgufTensor]:
    path.write_bytes(np.array(values, "<f4").tobytes())
    name = "rope_freqs.weight"
    return {name: GgufTensor(path, name, GGMLQuantizationType.F32, (len(values),), 0, 4 * len(values))}


def llama3(factor: float, low: float, high: float, length: int = 8192) -> list[float]:
    """By the formula of transformers' `_compute_llama3_parameters`, for heads of 128 and theta 500,000."""
    found = []
    for index in range(0, 128, 2):
        turns = length / (2 * math.pi * 500000.0 ** (index / 128))
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        found.append(1 / ((1 - keep) / factor + keep))
    return found


WIDE: dict[str, Any] = {
    "attention__key_length": 128,
    "attention__value_length": 128,
    "rope__freq_base": 500000.0,
}


@pytest.mark.parametrize(("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (16.0, 0.75, 6.5)])
def test_divisors_give_the_scaling_of_llama_3(factor: float, low: float, high: float, tmp_path: Path) -> None:
    tensors = divisors(tmp_path / "m.gguf", llama3(factor, low, high))
    assert config_of(tensors=tensors, **WIDE)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


def test_another_original_length_is_the_same_scaling_by_other_bounds(tmp_path: Path) -> None:
    tensors = divisors(tmp_path / "m.gguf", llama3(8.0, 1.0, 4.0, length=4096))
    found = config_of(tensors=tensors, **WIDE)["rope_scaling"]
    assert (found["low_freq_factor"], found["high_freq_factor"]) == (2.0, 8.0)


def test_divisors_of_one_are_no_scaling(tmp_path: Path) -> None:
    assert "rope_scaling" not in config_of(tensors=divisors(tmp_path / "m.gguf", [1.0] * 64), **WIDE)


@pytest.mark.parametrize(
    ("values", "changes", "named"),
    [
        ([1.0] * 32 + [9.0, 2.0] * 16, {}, "no scaling by the formula"),
        ([1.0] * 63 + [math.nan], {}, "divisors below 1"),
        ([1.0] * 63 + [0.5], {}, "divisors below 1"),
        ([1.0] * 63, {}, "is F32"),
        (llama3(8.0, 1.0, 4.0), {"rope__scaling__factor": 2.0}, "beside another rope scaling"),
    ],
)
def test_other_divisors_are_refused(
    values: list[float], changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(BadGguf, match=named):
        config_of(tensors=divisors(tmp_path / "m.gguf", values), **WIDE, **changes)
