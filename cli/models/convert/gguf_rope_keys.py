"""Says the rotary embedding of a model in the keys of a GGUF file."""

import math
from dataclasses import replace
from typing import Any

from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig

_LOG_MULTIPLIER = 0.1  # of `mscale_all_dim`, in `rope.scaling.yarn_log_multiplier`


def rope_of(config: ModelConfig) -> RopeConfig | None:
    """Return how layers without a window rotate; if none of them does, how the first layer does."""
    layers = sorted(config.layers, key=lambda layer: layer.attention.window)
    return layers[0].attention.rope or config.layers[0].attention.rope


def rope_keys(rope: RopeConfig) -> dict[str, Any]:
    """Return its keys; kinds that have none are left out."""
    keys: dict[str, Any] = {"rope.dimension_count": rope.dim, "rope.freq_base": rope.theta}
    if rope.kind == "linear":
        return keys | {"rope.scaling.type": "linear", "rope.scaling.factor": rope.factor}
    if rope.kind == "longrope":
        return keys | {
            "rope.scaling.original_context_length": rope.original_length,
            "rope.scaling.attn_factor": with_attention_factor(rope).attention_factor,
        }
    if rope.kind != "yarn":
        return keys
    keys |= {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope.factor,
        "rope.scaling.original_context_length": rope.original_length,
        "rope.scaling.yarn_beta_fast": rope.beta_fast,
        "rope.scaling.yarn_beta_slow": rope.beta_slow,
    }
    if rope.mscale_all_dim:
        keys["rope.scaling.yarn_log_multiplier"] = _LOG_MULTIPLIER * rope.mscale_all_dim
    elif rope.attention_factor:  # llama.cpp multiplies it with what the formula gives
        usual = 0.1 * math.log(max(1.0, rope.factor)) + 1.0
        keys["rope.scaling.attn_factor"] = rope.attention_factor / usual
    return keys


def with_attention_factor(rope: RopeConfig) -> RopeConfig:
    """Return it with the factor of LongRoPE that follows from its other numbers (Ding et al., 2024)."""
    if rope.kind != "longrope" or rope.attention_factor:
        return rope
    long = math.log(max(1.0, rope.factor)) / math.log(rope.original_length)
    return replace(rope, attention_factor=math.sqrt(1.0 + long))
