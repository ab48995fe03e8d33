"""Mixtures of experts: Qwen 2 and 3, OLMoE, Granite, gpt-oss. Mixtral's files are of architecture `llama`."""

from services.worker.gguf.architectures.base import (
    Config,
    GgufArchitecture,
    every,
    has_tensor,
    with_rope,
)
from services.worker.gguf.architectures.gated import granite_scales
from services.worker.gguf.metadata_fields import MetadataFields


def _experts(fields: MetadataFields, name: str = "num_experts") -> Config:
    return {
        name: fields.integer("expert_count"),
        "num_experts_per_tok": fields.integer("expert_used_count"),
    }


def _qwen2_moe(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | _experts(fields)
        | {
            "architectures": ["Qwen2MoeForCausalLM"],
            "model_type": "qwen2_moe",
            "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
            "shared_expert_intermediate_size": fields.integer("expert_shared_feed_forward_length"),
            "norm_topk_prob": False,  # llama.cpp does not divide by the sum
            "decoder_sparse_step": 1,
            "use_sliding_window": False,
        }
    )


def _qwen3_moe(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | _experts(fields)
        | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "use_sliding_window": False,
            "attention_bias": has_tensor(fields, "attn_q.bias"),
        }
    )


def _olmoe(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | _experts(fields)
        | {
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "norm_topk_prob": False,
            "clip_qkv": fields.number("attention.clamp_kqv") if fields.has("attention.clamp_kqv") else None,
        }
    )


def _granite_moe(fields: MetadataFields) -> Config:
    return (
        with_rope(fields)
        | granite_scales(fields)
        | _experts(fields, "num_local_experts")
        | {
            "architectures": ["GraniteMoeForCausalLM"],
            "model_type": "granitemoe",
            "attention_bias": has_tensor(fields, "attn_q.bias"),
        }
    )


def _gpt_oss(fields: MetadataFields) -> Config:
    rope = with_rope(fields)
    scaling = rope.pop("rope_scaling", {"rope_type": "default"})
    if scaling["rope_type"] == "yarn":
        scaling["truncate"] = False  # as the model was trained; there is no key for it
    rope["rope_parameters"] = scaling | {"rope_theta": rope.pop("rope_theta")}
    return (
        rope
        | _experts(fields, "num_local_experts")
        | {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "intermediate_size": fields.integer("expert_feed_forward_length"),
            "sliding_window": fields.integer("attention.sliding_window"),
            "layer_types": every(fields, 2),
            "attention_bias": True,
        }
    )


MIXTURES = {
    "qwen2moe": GgufArchitecture(_qwen2_moe),
    "qwen3moe": GgufArchitecture(_qwen3_moe),
    "olmoe": GgufArchitecture(_olmoe),
    "granitemoe": GgufArchitecture(_granite_moe, interleaved_heads=True),
    "gpt-oss": GgufArchitecture(_gpt_oss, mlp_norm="post_attention_norm"),
}
