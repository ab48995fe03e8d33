"""Says a `config.json` in the keys of a GGUF file, from the shape that the engine reads from it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.config.json_fields import read_json
from services.worker.engine.config.layer_config import MlpConfig
from services.worker.engine.config.model_config import ModelConfig
from services.worker.gguf.header_bytes import BadGguf

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3moe",
}


def model_keys(directory: Path, config: ModelConfig) -> dict[str, Any]:
    """Return the keys that begin with the architecture's name.

    Raises:
        BadGguf: The model has something that GGUF files cannot say, or that is not converted.
    """
    name = ARCHITECTURES[config.architecture]
    path = directory / "config.json"
    keys: dict[str, Any] = {
        "context_length": int(read_json(path).get("max_position_embeddings") or config.context_length),
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.final_norm.eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope.theta,
        "vocab_size": config.vocab_size,
    }
    keys |= _mlp_keys(path, config)
    if any(config.windows):
        if config.architecture != "MistralForCausalLM" or len(set(config.windows)) > 1:
            raise BadGguf(f"{path}: its sliding window is not converted")
        keys["attention.sliding_window"] = config.windows[0]
    keys |= _rope_keys(path, config)
    return {f"{name}.{key}": value for key, value in keys.items()}


def frequency_divisors(config: ModelConfig) -> NDArray[np.float32] | None:
    """Return the divisors of Llama 3.1's rope scaling, one for each frequency; None for other kinds.

    The formula is that of the Llama 3.1 release, in `transformers` called `llama3`.
    """
    rope = config.rope
    if rope.kind != "llama3":
        return None
    frequencies = 1.0 / rope.theta ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = rope.original_length * frequencies / (2 * math.pi)
    width = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / width, 0.0, 1.0)
    divisors: NDArray[np.float32] = (1.0 / ((1.0 - keep) / rope.factor + keep)).astype(np.float32)
    return divisors


def _mlp_keys(path: Path, config: ModelConfig) -> dict[str, Any]:
    mlp = config.layers[0].mlp
    if any(layer.mlp != mlp for layer in config.layers):
        raise BadGguf(f"{path}: layers with experts beside dense ones are not converted")
    inner = mlp if isinstance(mlp, MlpConfig) else mlp.expert
    if inner.activation != "silu":
        name = ARCHITECTURES[config.architecture]
        raise BadGguf(f"{path}: GGUF files of {name} have no other activation than silu")
    if isinstance(mlp, MlpConfig):
        return {"feed_forward_length": mlp.inner}
    if not mlp.normalize:
        raise BadGguf(f"{path}: experts whose weights are not divided by their sum are not converted")
    keys = {
        "expert_count": mlp.count,
        "expert_used_count": mlp.chosen,
        "feed_forward_length": mlp.expert.inner,
    }
    if config.architecture == "Qwen3MoeForCausalLM":
        keys["expert_feed_forward_length"] = mlp.expert.inner
    return keys


def _rope_keys(path: Path, config: ModelConfig) -> dict[str, Any]:
    rope = config.rope
    if rope.kind in {"default", "llama3"}:
        return {}
    if rope.kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}
    if rope.kind != "yarn" or rope.mscale or rope.mscale_all_dim or not rope.truncate:
        raise BadGguf(f"{path}: its rope scaling of kind {rope.kind} is not converted")
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope.factor,
        "rope.scaling.original_context_length": rope.original_length,
        "rope.scaling.yarn_beta_fast": rope.beta_fast,
        "rope.scaling.yarn_beta_slow": rope.beta_slow,
    }
    if rope.attention_factor:
        usual = 0.1 * math.log(max(1.0, rope.factor)) + 1.0
        keys["rope.scaling.attn_factor"] = rope.attention_factor / usual
    return keys
