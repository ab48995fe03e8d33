"""Writes models of the table as GGUF files, with the keys and tensors that llama.cpp's converter gives them.

llama.cpp itself has read files that are written so; see docs/models.md.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from services.worker.engine.checkpoint.names.gguf_names import gguf_names
from services.worker.engine.checkpoint.names.tensor_view import TensorView
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.checkpoint.weight_source import WeightSource
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.config import ARCHITECTURES
from tests.kits.engine.gguf_models import finish

Floats = NDArray[np.float32]
Keys = dict[str, Any]


def write_family_gguf(directory: Path, target: Path, architecture: str, *, joined: bool = False) -> Path:
    """Writes a model without a tokenizer, in F32.

    With `joined`, keys and values of latent attention are stored together, as before 2025.
    """
    config, fields = read_config(directory), json.loads((directory / "config.json").read_text())
    writer = GGUFWriter(target, architecture)
    keys = _common(config) | _OWN[architecture](config, fields)
    for key, value in (_joined(keys, config) if joined else keys).items():
        _add(writer, f"{architecture}.{key}", value)
    names = gguf_names(ARCHITECTURES[architecture])
    with open_checkpoint(directory) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        chosen = _chosen(architecture, config)
        if joined:
            chosen |= {f"blk.{layer}.attn_kv_b.weight" for layer in range(config.num_layers)}
        views = names.views(config, chosen)
        for name, values in _stored(config, source, views).items():
            writer.add_tensor(name, values)
    scaling = fields.get("rope_parameters") or {}
    if scaling.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            factors = np.array(scaling[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    return finish(writer, target)


def _chosen(architecture: str, config: ModelConfig) -> set[str]:
    """Names that the converter chooses where there are several."""
    modules = ["attn_qkv"] if architecture in _FUSED else []
    if config.layers[0].mlp_norm is None or not config.layers[0].parallel:
        modules.append("attn_norm")
    suffixes = ("weight", "bias")
    return {f"blk.{i}.{m}.{suffix}" for i in range(config.num_layers) for m in modules for suffix in suffixes}


def _stored(config: ModelConfig, source: WeightSource, views: dict[str, TensorView]) -> dict[str, Floats]:
    """The tensors of the file, put together from those of the model."""
    stored: dict[str, Floats] = {}
    for name, view in views.items():
        values: Floats = source.read(name).numpy()
        if config.final_norm.offset and name.endswith("norm.weight"):
            values = values + np.float32(config.final_norm.offset)
        whole = stored.setdefault(view.stored, np.zeros(view.stored_shape, np.float32))
        part = whole if view.index is None else whole[view.index : view.index + 1]
        if view.index is not None:
            part = part[0] if part.ndim > 1 else part
        if view.transposed:
            part = part.T
        rows = [view.stored_row(row) for row in _paired(view, len(values))]
        part[rows] = values
    return stored


def _paired(view: TensorView, count: int) -> list[int]:
    """Where each row goes among those of the view: next to the one that it is rotated with."""
    order = list(range(count))
    if view.pairs is None:
        return order
    head, first, size = view.pairs.head, view.pairs.first, view.pairs.count
    for begin in range(0, count, head):
        for index in range(size):
            half, offset = divmod(index, size // 2)
            order[begin + first + index] = begin + first + 2 * offset + half
    return order


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _common(config: ModelConfig) -> Keys:
    # a layer that sees everything, if there is one
    attention = min(config.layers, key=lambda layer: layer.attention.window).attention
    keys: Keys = {
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.least_inner,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    rms = config.final_norm.kind == "rms"
    keys[f"attention.layer_norm_{'rms_' if rms else ''}epsilon"] = config.final_norm.eps
    if attention.rope is None:
        attention = config.layers[0].attention
    if attention.rope is not None:
        keys |= {"rope.dimension_count": attention.rope.dim, "rope.freq_base": attention.rope.theta}
    window = max(config.windows)
    return keys | ({"attention.sliding_window": window} if window else {})


def _none(config: ModelConfig, fields: Keys) -> Keys:
    return {}


def _gemma2(config: ModelConfig, fields: Keys) -> Keys:
    return {name: fields[name] for name in ("attn_logit_softcapping", "final_logit_softcapping")}


def _gemma3(config: ModelConfig, fields: Keys) -> Keys:
    return {"rope.freq_base_swa": config.layers[0].attention.rope.theta}  # type: ignore[union-attr]


def _granite(config: ModelConfig, fields: Keys) -> Keys:
    return {
        "attention.scale": fields["attention_multiplier"],
        "embedding_scale": fields["embedding_multiplier"],
        "residual_scale": fields["residual_multiplier"],
        "logit_scale": fields["logits_scaling"],
    }


def _logit_scale(config: ModelConfig, fields: Keys) -> Keys:
    return {"logit_scale": fields["logit_scale"]}


def _parallel(config: ModelConfig, fields: Keys) -> Keys:
    return {"use_parallel_residual": fields["use_parallel_residual"]}


def _mpt(config: ModelConfig, fields: Keys) -> Keys:
    clip = config.layers[0].attention.clip_qkv
    return {"attention.max_alibi_bias": 8.0} | ({"attention.clamp_kqv": clip} if clip else {})


def _phi3(config: ModelConfig, fields: Keys) -> Keys:
    scaling = fields.get("rope_parameters") or {}
    if scaling.get("rope_type") != "longrope":
        return {}
    return {"rope.scaling.original_context_length": fields["original_max_position_embeddings"]}


def _experts(config: ModelConfig, fields: Keys) -> Keys:
    count = fields.get("num_local_experts") or fields.get("num_experts")
    return {
        "expert_count": count,
        "expert_used_count": fields["num_experts_per_tok"],
        "expert_feed_forward_length": fields.get("moe_intermediate_size") or fields["intermediate_size"],
    }


def _mixtral(config: ModelConfig, fields: Keys) -> Keys:
    keys = _experts(config, fields)
    del keys["expert_feed_forward_length"]
    return keys


def _llama(config: ModelConfig, fields: Keys) -> Keys:
    """Mixtral is stored as Llama, too."""
    return _mixtral(config, fields) if "num_local_experts" in fields else {}


def _qwen2_moe(config: ModelConfig, fields: Keys) -> Keys:
    return _experts(config, fields) | {
        "expert_shared_feed_forward_length": fields["shared_expert_intermediate_size"]
    }


def _granite_moe(config: ModelConfig, fields: Keys) -> Keys:
    keys = _experts(config, fields)
    del keys["expert_feed_forward_length"]
    return keys | _granite(config, fields)


def _olmoe(config: ModelConfig, fields: Keys) -> Keys:
    keys = _mixtral(config, fields)
    return keys | ({"attention.clamp_kqv": fields["clip_qkv"]} if fields.get("clip_qkv") else {})


def _grouped(config: ModelConfig, fields: Keys) -> Keys:
    layer = config.layers[-1].mlp
    assert isinstance(layer, ExpertsConfig)
    keys = _experts(config, {"num_local_experts": layer.count} | fields) | {
        "feed_forward_length": fields["intermediate_size"],
        "expert_shared_count": fields["n_shared_experts"],
        "expert_weights_scale": fields["routed_scaling_factor"],
        "expert_weights_norm": layer.normalize,
        "expert_gating_func": 2 if layer.scoring == "sigmoid" else 1,
        "leading_dense_block_count": fields["first_k_dense_replace"],
    }
    groups = {"expert_group_count": layer.groups, "expert_group_used_count": layer.chosen_groups}
    return keys | (groups if layer.groups > 1 else {})


def _glm4_moe(config: ModelConfig, fields: Keys) -> Keys:
    return _grouped(config, fields)


def _deepseek2(config: ModelConfig, fields: Keys) -> Keys:
    """Keys and values of heads apart, as the converter stores them since 2025."""
    rank, rope_dim = fields["kv_lora_rank"], fields["qk_rope_head_dim"]
    keys = _grouped(config, fields) | {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope_dim,
        "attention.value_length": rank,
        "attention.key_length_mla": fields["qk_nope_head_dim"] + rope_dim,
        "attention.value_length_mla": fields["v_head_dim"],
    }
    if fields["q_lora_rank"]:
        keys["attention.q_lora_rank"] = fields["q_lora_rank"]
    scaling = fields.get("rope_parameters") or {}
    if scaling.get("rope_type") == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * scaling["mscale_all_dim"],
        }
    return keys


def _joined(keys: Keys, config: ModelConfig) -> Keys:
    for kind in ("key", "value"):
        keys[f"attention.{kind}_length"] = keys.pop(f"attention.{kind}_length_mla")
    return keys | {"attention.head_count_kv": config.num_heads}


_FUSED = {"gpt2", "gptneox", "falcon", "mpt", "phi3"}

_OWN: dict[str, Callable[[ModelConfig, Keys], Keys]] = {
    "llama": _llama,
    "gemma": _none,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "smollm3": _none,
    "olmo2": _none,
    "exaone4": _none,
    "glm4": _none,
    "chatglm": _none,
    "command-r": _logit_scale,
    "cohere2": _logit_scale,
    "stablelm": _parallel,
    "starcoder2": _none,
    "phi2": _none,
    "nemotron": _none,
    "gptneox": _parallel,
    "gpt2": _none,
    "falcon": _none,
    "mpt": _mpt,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _experts,
    "olmoe": _olmoe,
    "granitemoe": _granite_moe,
    "gpt-oss": _experts,
    "bitnet": _none,
    "glm4moe": _glm4_moe,
    "deepseek2": _deepseek2,
}
