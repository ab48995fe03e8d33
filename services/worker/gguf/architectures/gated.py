"""Decoders with RMS norms and gated MLPs: Llama and its relatives, Gemma, Phi-3, Granite, OLMo 2, GLM-4."""

from services.worker.gguf.architectures.base import (
    Config,
    GgufArchitecture,
    every,
    has_tensor,
    head_dim,
    num_layers,
    shortest,
    with_rope,
)
from services.worker.gguf.metadata_fields import MetadataFields

_LARGEST_GEMMA2, _LARGEST_GEMMA3 = 46, 62  # layers of the sizes whose scores are scaled by the hidden size
_GEMMA3_LOCAL_THETA = 10000.0  # llama.cpp knows it without a key


def _llama(fields: MetadataFields) -> Config:
    """Llama, Mixtral, and Mistral, which llama.cpp's converter stores as Llama."""
    window = fields.integer("attention.sliding_window", 0, least=0)
    config = with_rope(fields)
    if fields.integer("expert_count", 0, least=0):
        config |= {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": fields.integer("expert_count"),
            "num_experts_per_tok": fields.integer("expert_used_count"),
            "sliding_window": window or None,
        }
    elif window:
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    else:
        config |= {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": has_tensor(fields, "attn_q.bias"),
            "mlp_bias": has_tensor(fields, "ffn_gate.bias"),
        }
    return config


def _qwen2(fields: MetadataFields) -> Config:
    fields.require("attention.sliding_window", (0,))
    return with_rope(fields) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
    }


def _qwen3(fields: MetadataFields) -> Config:
    fields.require("attention.sliding_window", (0,))
    return with_rope(fields) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "use_sliding_window": False,
        "attention_bias": has_tensor(fields, "attn_q.bias"),
    }


def _gemma(fields: MetadataFields) -> Config:
    return with_rope(fields) | _gelu() | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}


def _gemma2(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | _gelu()
        | {
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
            "sliding_window": fields.integer("attention.sliding_window", 4096),
            "layer_types": every(fields, 2),
            "query_pre_attn_scalar": _scored_by(fields, _LARGEST_GEMMA2),
        }
    )


def _gemma3(fields: MetadataFields) -> Config:
    rope = with_rope(fields)
    return (
        rope
        | _gelu()
        | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "rope_local_base_freq": fields.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA),
            "sliding_window": fields.integer("attention.sliding_window"),
            "layer_types": every(fields, 6),
            "query_pre_attn_scalar": _scored_by(fields, _LARGEST_GEMMA3),
            "final_logit_softcapping": fields.number("final_logit_softcapping")
            if fields.has("final_logit_softcapping")
            else None,
        }
    )


def _gelu() -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _scored_by(fields: MetadataFields, largest: int) -> int:
    """The number whose root divides the scores."""
    if num_layers(fields) == largest:
        return fields.integer("embedding_length") // fields.integer("attention.head_count")
    return head_dim(fields)


def _granite(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | granite_scales(fields)
        | {
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "attention_bias": has_tensor(fields, "attn_q.bias"),
            "mlp_bias": has_tensor(fields, "ffn_gate.bias"),
        }
    )


def granite_scales(fields: MetadataFields) -> Config:
    """The multipliers of Granite."""
    return {
        "attention_multiplier": shortest(fields.number("attention.scale", head_dim(fields) ** -0.5)),
        "embedding_multiplier": shortest(fields.number("embedding_scale", 1.0)),
        "residual_multiplier": shortest(fields.number("residual_scale", 1.0)),
        "logits_scaling": shortest(fields.number("logit_scale", 1.0)),
    }


def _smollm3(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        # every fourth layer has no positions; llama.cpp knows it without a key
        "no_rope_layers": [int((index + 1) % 4 != 0) for index in range(num_layers(fields))],
        "use_sliding_window": False,
        "attention_bias": has_tensor(fields, "attn_q.bias"),
        "mlp_bias": has_tensor(fields, "ffn_gate.bias"),
    }


def _olmo2(fields: MetadataFields) -> Config:
    """OLMo 2; with a window it is OLMo 3, whose scaled rotation is for the layers without one."""
    window = fields.integer("attention.sliding_window", 0, least=0)
    if not window:
        return with_rope(fields) | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
    return with_rope(fields) | {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": every(fields, 4),
    }


def _exaone4(fields: MetadataFields) -> Config:
    window = fields.integer("attention.sliding_window", 0, least=0)
    config = with_rope(fields) | {"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4"}
    if not window:
        return config | {"sliding_window": None, "layer_types": ["full_attention"] * num_layers(fields)}
    return config | {
        "sliding_window": window,
        "sliding_window_pattern": 4,
        "layer_types": every(fields, 4),
    }


def _glm4(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["Glm4ForCausalLM"],
        "model_type": "glm4",
        "attention_bias": has_tensor(fields, "attn_q.bias"),
        "head_dim": head_dim(fields),
    }


def _chatglm(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "attention_bias": has_tensor(fields, "attn_q.bias") or has_tensor(fields, "attn_qkv.bias"),
        "head_dim": head_dim(fields),
    }


def _bitnet(fields: MetadataFields) -> Config:
    """With the activation that llama.cpp computes; Microsoft's later models have no architecture there."""
    return with_rope(fields) | {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        "hidden_act": "silu",
    }


GATED = {
    "llama": GgufArchitecture(_llama, interleaved_heads=True),
    "qwen2": GgufArchitecture(_qwen2),
    "qwen3": GgufArchitecture(_qwen3),
    "gemma": GgufArchitecture(_gemma),
    "gemma2": GgufArchitecture(_gemma2),
    "gemma3": GgufArchitecture(_gemma3),
    "granite": GgufArchitecture(_granite, interleaved_heads=True),
    "smollm3": GgufArchitecture(_smollm3, interleaved_heads=True),
    "olmo2": GgufArchitecture(_olmo2),
    "exaone4": GgufArchitecture(_exaone4),
    "glm4": GgufArchitecture(_glm4, interleaved_heads=True, fused_gate=True),
    "bitnet": GgufArchitecture(_bitnet),
    "chatglm": GgufArchitecture(_chatglm, interleaved_heads=True, fused_gate=True),
}
