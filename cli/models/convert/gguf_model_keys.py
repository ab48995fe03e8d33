"""Says the shape of a model in the keys of a GGUF file, and names the architecture that it has there.

What a file cannot say is not looked for here: `same_model.py` reads the keys back and compares.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.models.convert.gguf_rope_keys import rope_keys, rope_of
from services.worker.engine.config.layer import AttentionConfig, ExpertsConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig

Keys = dict[str, Any]

# of config.json -> `general.architecture`
ARCHITECTURES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"), "llama"),
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GraniteForCausalLM": "granite",
    "SmolLM3ForCausalLM": "smollm3",
    **dict.fromkeys(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), "olmo2"),
    "Exaone4ForCausalLM": "exaone4",
    "Glm4ForCausalLM": "glm4",
    "GlmForCausalLM": "chatglm",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
    "PhiForCausalLM": "phi2",
    "Phi3ForCausalLM": "phi3",
    "NemotronForCausalLM": "nemotron",
    "GPTNeoXForCausalLM": "gptneox",
    "GPT2LMHeadModel": "gpt2",
    "FalconForCausalLM": "falcon",
    "MptForCausalLM": "mpt",
    "BitNetForCausalLM": "bitnet",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "OlmoeForCausalLM": "olmoe",
    "GraniteMoeForCausalLM": "granitemoe",
    "GptOssForCausalLM": "gpt-oss",
    "Glm4MoeForCausalLM": "glm4moe",
    **dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), "deepseek2"),
}
_FUSED = {"gpt2", "gptneox", "falcon", "mpt", "phi3"}  # queries, keys and values are one tensor

_ONE_LENGTH = {"llama", "olmoe", "granitemoe"}  # experts have the length that MLPs have elsewhere
_GROUPED = {"glm4moe", "deepseek2"}
_SOFTMAX, _SIGMOID = 1, 2  # values of `expert_gating_func`


def mlp_keys(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the keys of dense MLPs and of experts."""
    mlps = [layer.mlp for layer in config.layers]
    experts = next((mlp for mlp in mlps if isinstance(mlp, ExpertsConfig)), None)
    dense = [mlp.inner for mlp in mlps if not isinstance(mlp, ExpertsConfig)]
    if experts is None:
        return {"feed_forward_length": dense[0]}
    keys: dict[str, Any] = {
        "feed_forward_length": dense[0] if dense else experts.expert.inner,
        "expert_count": experts.count,
        "expert_used_count": experts.chosen,
    }
    if architecture not in _ONE_LENGTH:
        keys["expert_feed_forward_length"] = experts.expert.inner
    if architecture == "qwen2moe" and experts.shared is not None:
        keys["expert_shared_feed_forward_length"] = experts.shared.inner
    if architecture in _GROUPED:
        shared = 0 if experts.shared is None else experts.shared.inner
        leading = next((i for i, mlp in enumerate(mlps) if isinstance(mlp, ExpertsConfig)), len(mlps))
        keys |= {
            "expert_shared_count": shared // experts.expert.inner,
            "expert_weights_scale": experts.scale,
            "expert_weights_norm": experts.normalize,
            "expert_gating_func": _SIGMOID if experts.scoring == "sigmoid" else _SOFTMAX,
            "leading_dense_block_count": leading,
        }
        if experts.groups > 1:
            keys |= {
                "expert_group_count": experts.groups,
                "expert_group_used_count": experts.chosen_groups,
            }
    return keys


def model_keys(config: ModelConfig, architecture: str, positions: int) -> Keys:
    """Return the keys that begin with the architecture's name.

    Args:
        architecture: The name of the architecture in GGUF files.
        positions: `max_position_embeddings` of the config.
    """
    attention = config.layers[0].attention
    keys: Keys = {
        "context_length": positions,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "attention.head_count": config.num_heads,
        "vocab_size": config.vocab_size,
    }
    rms = config.final_norm.kind == "rms"
    keys[f"attention.layer_norm_{'rms_' if rms else ''}epsilon"] = config.final_norm.eps
    keys |= _head_keys(config, attention) | mlp_keys(config, architecture)
    keys |= _scale_keys(config, architecture)
    rope = rope_of(config)
    if rope is not None:
        keys |= rope_keys(rope)
        local = attention.rope
        if architecture == "gemma3" and local is not None:
            keys["rope.freq_base_swa"] = local.theta
    if window := max(config.windows):
        keys["attention.sliding_window"] = window
    if attention.softcap:
        keys["attn_logit_softcapping"] = attention.softcap
    if config.logit_softcap:
        keys["final_logit_softcapping"] = config.logit_softcap
    if attention.clip_qkv:
        keys["attention.clamp_kqv"] = attention.clip_qkv
    if attention.alibi:
        keys["attention.max_alibi_bias"] = 8.0  # the only one that the engine computes
    if architecture in {"stablelm", "gptneox"}:
        keys["use_parallel_residual"] = config.layers[0].parallel
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def chosen_names(config: ModelConfig, architecture: str) -> set[str]:
    """Return the names that llama.cpp's converter chooses where architectures have several."""
    modules = ["attn_qkv"] if architecture in _FUSED else []
    if config.layers[0].mlp_norm is None or not config.layers[0].parallel:
        modules.append("attn_norm")
    suffixes = ("weight", "bias")
    return {f"blk.{i}.{m}.{suffix}" for i in range(config.num_layers) for m in modules for suffix in suffixes}


def frequency_divisors(rope: RopeConfig | None) -> NDArray[np.float32] | None:
    """Return the divisors of Llama 3.1's rope scaling, one for each frequency; None for other kinds.

    The formula is that of the Llama 3.1 release, in `transformers` called `llama3`.
    """
    if rope is None or rope.kind != "llama3":
        return None
    frequencies = 1.0 / rope.theta ** (np.arange(0, rope.dim, 2) / rope.dim)
    rotations = rope.original_length * frequencies / (2 * math.pi)
    width = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((rotations - rope.low_freq_factor) / width, 0.0, 1.0)
    divisors: NDArray[np.float32] = (1.0 / ((1.0 - keep) / rope.factor + keep)).astype(np.float32)
    return divisors


def _head_keys(config: ModelConfig, attention: AttentionConfig) -> Keys:
    latent = attention.latent
    if latent is None:
        return {
            "attention.head_count_kv": config.num_kv_heads,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
    keys = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": latent.rank,
        "attention.key_length": latent.rank + latent.rope_dim,
        "attention.value_length": latent.rank,
        "attention.key_length_mla": latent.plain_dim + latent.rope_dim,
        "attention.value_length_mla": latent.value_dim,
    }
    return keys | ({"attention.q_lora_rank": latent.query_rank} if latent.query_rank else {})


def _scale_keys(config: ModelConfig, architecture: str) -> Keys:
    if architecture in {"granite", "granitemoe"}:
        return {
            "attention.scale": float(config.layers[0].attention.scale),
            "embedding_scale": float(config.embedding_scale),
            "residual_scale": float(config.layers[0].residual_scale),
            "logit_scale": 1.0 / config.logit_scale,
        }
    return {"logit_scale": float(config.logit_scale)} if architecture in {"command-r", "cohere2"} else {}
