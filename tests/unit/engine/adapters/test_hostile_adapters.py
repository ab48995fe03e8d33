"""Adapters that cannot be served are refused in a sentence that names file, fault and remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.worker.adapters.base_model import BaseModel
from services.worker.engine.config.read_config import read_config
from tests.kits.adapters.handmade import (
    DEMO,
    QUERIES,
    demo_tensors,
    pair,
    refusal,
    write_gguf_adapter,
    write_peft,
)
from tests.kits.families.models import family_model


def _without(name: str) -> dict[str, Any]:
    return {key: values for key, values in demo_tensors().items() if key != name}


def _with(module: str, outputs: int, inputs: int, rank: int = 4) -> dict[str, Any]:
    return demo_tensors() | pair(module, outputs, inputs, rank)


def _value(value: float) -> dict[str, Any]:
    tensors = demo_tensors()
    tensors[f"{QUERIES}.lora_B.weight"][7, 1] = value
    return tensors


def _more(name: str) -> dict[str, Any]:
    return demo_tensors() | {name: np.ones((4, 192), np.float32)}


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "without its B": (
        _without(f"{QUERIES}.lora_B.weight"),
        f"{QUERIES}.lora_A.weight lacks its partner model.layers.0.self_attn.q_proj.lora_B.weight",
    ),
    "without its A": (_without(f"{QUERIES}.lora_A.weight"), "lacks its partner"),
    "another rank in B": (
        demo_tensors() | {f"{QUERIES}.lora_B.weight": np.ones((256, 5), np.float32)},
        "has rank 4 and its partner",
    ),
    "another rank than the config": (
        _with("model.layers.1.self_attn.q_proj", 256, 192, 8),
        "has rank 8, adapter_config.json says 4",
    ),
    "rank 0": (
        demo_tensors()
        | {
            f"{QUERIES}.lora_A.weight": np.ones((0, 192), np.float32),
            f"{QUERIES}.lora_B.weight": np.ones((256, 0), np.float32),
        },
        "has rank 0, served are 1 to 512",
    ),
    "a huge rank": (
        _with("model.layers.1.self_attn.q_proj", 256, 192, 513),
        "has rank 513, served are 1 to 512",
    ),
    "one dimension": (
        demo_tensors() | {f"{QUERIES}.lora_A.weight": np.ones(192, np.float32)},
        "has shape [192]",
    ),
    "another width": (
        _with("model.layers.1.self_attn.q_proj", 256, 191),
        "is for a matrix of shape [256, 191], the base's is [256, 192]",
    ),
    "another height": (_with("model.layers.1.self_attn.k_proj", 256, 192), "the base's is [128, 192]"),
    "a layer beyond": (
        _with("model.layers.4.self_attn.q_proj", 256, 192),
        "module 'model.layers.4.self_attn.q_proj' is no matrix of the base LlamaForCausalLM with 4 layers",
    ),
    "an unknown module": (_with("model.layers.0.self_attn.qkv_proj", 512, 192), "is no matrix of the base"),
    "a norm": (_with("model.layers.0.input_layernorm", 192, 192), "train without it"),
    "names that leave a directory": (_with("../../etc/passwd", 256, 192), "is no matrix of the base"),
    "an embedding as a matrix": (
        _with("model.embed_tokens", 2048, 192),
        "adapters of embeddings are not served",
    ),
    "an embedding": (
        _more("base_model.model.model.embed_tokens.lora_embedding_A"),
        "adapters of embeddings are not served",
    ),
    "DoRA": (_more(f"{QUERIES}.lora_magnitude_vector"), "says no `use_dora`"),
    "a bias": (_more(f"{QUERIES}.lora_B.bias"), "biases of adapters are not served"),
    "a whole head": (_more("base_model.model.lm_head.weight"), "is not the base's"),
    "a whole module": (_more("base_model.model.model.layers.0.mlp.up_proj.weight"), "is no matrix of a LoRA"),
    "something else": (_more("base_model.model.x.lora_C.bias"), "is no matrix of a LoRA"),
    "a weight of the base": (
        _more("base_model.model.lm_head.base_layer.weight"),
        "save_embedding_layers=False",
    ),
    "no number": (_value(np.nan), f"tensor {QUERIES}.lora_B.weight has values that are no finite numbers"),
    "infinite": (_value(-np.inf), "has values that are no finite numbers"),
    "beyond fp32": (_value(1e38), "adds is beyond fp32"),
    "whole numbers": (
        demo_tensors() | {f"{QUERIES}.lora_A.weight": np.ones((4, 192), np.int32)},
        "has type I32, supported: BF16, F16, F32",
    ),
}


@pytest.mark.parametrize("name", list(TENSORS))
def test_wrong_tensors(tmp_path: Path, name: str) -> None:
    tensors, sentence = TENSORS[name]
    # the config goes along, so that the rank itself is refused
    ranks = {"rank_pattern": {"layers.1.self_attn.q_proj": 513}} if name == "a huge rank" else {}
    found = refusal(write_peft(tmp_path / "a", tensors, **ranks))
    assert sentence in found
    assert str(tmp_path / "a") in found


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "`peft_type` is 'IA3', only LORA is served"),
    "no method": ({"peft_type": None}, "only LORA is served"),
    "DoRA without magnitudes": ({"use_dora": True}, "has no lora_magnitude_vector"),
    "DoRA that is a word": ({"use_dora": "yes"}, "`use_dora` must be true or false"),
    "whole modules": (
        {"modules_to_save": ["embed_tokens"]},
        "`modules_to_save` has 'embed_tokens', and only the output head (lm_head) is served as a whole",
    ),
    "biases": ({"bias": "all"}, "`bias` is 'all', biases of adapters are not served"),
    "biases of its own": ({"lora_bias": True}, "`lora_bias` is set"),
    "parameters": ({"target_parameters": ["experts.gate_up_proj"]}, "adapters of parameters"),
    "tokens": ({"trainable_token_indices": [1, 2]}, "trained embeddings are not served"),
    "layers again": ({"layer_replication": [[0, 4], [2, 4]]}, "replicated layers are not served"),
    "after a token": ({"alora_invocation_tokens": [1]}, "adapters that begin at a token"),
    "a changed base": ({"init_lora_weights": "pissa_niter_16"}, "which changes the base's weights"),
    "what is not known": ({"use_qalora": True}, "`use_qalora` is not supported"),
    "rank 0": ({"r": 0}, "`r` must be a positive integer, got 0"),
    "a rank of text": ({"r": "4"}, "`r` must be a positive integer"),
    "a rank that is a flag": ({"r": True}, "`r` must be a positive integer"),
    "a rank of a pattern": (
        {"rank_pattern": {"q_proj": -1}},
        "`rank_pattern.q_proj` must be a positive integer",
    ),
    "no table": ({"rank_pattern": [1]}, "`rank_pattern` must be an object"),
    "alpha of text": ({"lora_alpha": "8"}, "`lora_alpha` must be a number"),
    "infinite alpha": ({"lora_alpha": float("inf")}, "`lora_alpha` must be a finite number"),
    "alpha without end": ({"lora_alpha": 10**400}, "`lora_alpha` must be a finite number"),
    "huge alpha": ({"lora_alpha": 1e9}, "gives the scale 2.5e+08, at most 1024 is served"),
    "huge alpha of a module": ({"alpha_pattern": {"q_proj": -1e6}}, "gives the scale -250000"),
    "a pattern that never ends": ({"alpha_pattern": {"(a+)+b": 1}}, "keys are names of modules"),
    "a pattern that is none": ({"alpha_pattern": {"(": 1}}, "keys are names of modules"),
    "no flag": ({"use_rslora": "yes"}, "`use_rslora` must be true or false"),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_wrong_configs(tmp_path: Path, name: str) -> None:
    config, sentence = CONFIGS[name]
    found = refusal(write_peft(tmp_path / "a", **config))
    assert sentence in found
    assert str(tmp_path / "a") in found
    assert "adapter_config.json" in found


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 1e999}', "[" * 100_000, "x" * 2**21])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    source = write_peft(tmp_path / "a")
    (source / "adapter_config.json").write_text(text)
    assert str(source / "adapter_config.json") in refusal(source)


def test_experts_and_their_router(tmp_path: Path) -> None:
    model = family_model("mixtral")
    base = BaseModel.of(model.directory, model.config)
    hidden, inner = 64, 48
    for module, outputs in (("block_sparse_moe.experts.1.w1", inner), ("block_sparse_moe.gate", 6)):
        tensors = pair(f"model.layers.0.{module}", outputs, hidden)
        assert "adapters of experts are not served" in refusal(write_peft(tmp_path / "a", tensors), base)


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    model = family_model("gpt2")
    base = BaseModel.of(model.directory, model.config)
    assert "is no matrix of the base GPT2LMHeadModel" in refusal(write_peft(tmp_path / "a"), base)
    found = refusal(
        write_peft(tmp_path / "a"), BaseModel.of(DEMO, read_config(family_model("llama").directory))
    )
    assert "load it with its own base" in found


def test_gguf_files_that_are_no_adapter(tmp_path: Path) -> None:
    down, up = np.ones((4, 192), np.float32), np.ones((256, 4), np.float32)
    good = {"blk.0.attn_q.weight.lora_a": down, "blk.0.attn_q.weight.lora_b": up}
    path = tmp_path / "adapter.gguf"
    assert "but no adapter" in refusal(write_gguf_adapter(path, good, keys={"general.type": "model"}))
    assert "only lora is served" in refusal(write_gguf_adapter(path, good, keys={"adapter.type": "control"}))
    assert "architecture 'none' is not supported" in refusal(
        write_gguf_adapter(path, good, architecture="none")
    )
    assert "gives the scale" in refusal(write_gguf_adapter(path, good, alpha=1e9))
    assert "gives the scale nan" in refusal(write_gguf_adapter(path, good, alpha=float("nan")))
    lonely = {"blk.0.attn_q.weight.lora_a": down}
    assert "lacks its partner blk.0.attn_q.weight.lora_b" in refusal(write_gguf_adapter(path, lonely))
    embedding = {"token_embd.weight.lora_a": down, "token_embd.weight.lora_b": np.ones((2048, 4), np.float32)}
    assert "adapters of embeddings" in refusal(write_gguf_adapter(path, embedding))
    other = good | {"blk.0.attn_norm.weight": np.ones(192, np.float32)}
    assert "is no matrix of a LoRA" in refusal(write_gguf_adapter(path, other))
    write_gguf_adapter(path, good)
    path.write_bytes(path.read_bytes()[:200])
    assert str(path) in refusal(path)
