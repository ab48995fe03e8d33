"""GLM 4.5 and DeepSeek V2 and V3: experts of groups behind some dense layers, and latent attention."""

from services.worker.gguf.architectures.base import (
    MOST_LAYERS,
    Config,
    GgufArchitecture,
    has_tensor,
    num_layers,
    with_rope,
)
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.rope_keys import rope_config

_SOFTMAX, _SIGMOID = 1, 2  # values of `expert_gating_func`
_LOG_MULTIPLIER = 0.1  # of `mscale_all_dim`, in `rope.scaling.yarn_log_multiplier`
_GROUPED_EXPERTS = 256  # of DeepSeek V3, whose experts are in groups


def _experts(fields: MetadataFields) -> Config:
    return {
        "n_routed_experts": fields.integer("expert_count"),
        "num_experts_per_tok": fields.integer("expert_used_count"),
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "n_shared_experts": fields.integer("expert_shared_count"),
        "first_k_dense_replace": fields.integer("leading_dense_block_count", 0, least=0, most=MOST_LAYERS),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
    }


def _groups(fields: MetadataFields) -> Config:
    return {
        "n_group": fields.integer("expert_group_count", 1),
        "topk_group": fields.integer("expert_group_used_count", 1),
    }


def _glm4_moe(fields: MetadataFields) -> Config:
    if fields.integer("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise fields.error("expert_gating_func", f"{_SIGMOID}, the sigmoid")
    later = fields.integer("nextn_predict_layers", 0, least=0, most=num_layers(fields) - 1)
    return (
        with_rope(fields)
        | _experts(fields)
        | _groups(fields)
        | {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_hidden_layers": num_layers(fields) - later,  # the others predict further tokens
            "norm_topk_prob": fields.flag("expert_weights_norm", True),
            "use_qk_norm": has_tensor(fields, "attn_q_norm.weight"),
            "attention_bias": has_tensor(fields, "attn_q.bias"),
        }
    )


def _deepseek2(fields: MetadataFields) -> Config:
    config = _latent(fields) | _experts(fields)
    scoring = fields.integer("expert_gating_func", _SOFTMAX)
    if scoring == _SOFTMAX:
        groups = _groups(fields)
        grouped = groups["n_group"] > 1
        return config | {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "norm_topk_prob": fields.flag("expert_weights_norm", False),
            **({"topk_method": "group_limited_greedy", **groups} if grouped else {"topk_method": "greedy"}),
        }
    if scoring != _SIGMOID:
        raise fields.error("expert_gating_func", f"{_SOFTMAX} or {_SIGMOID}")
    if config["n_routed_experts"] == _GROUPED_EXPERTS and not fields.has("expert_group_count"):
        raise fields.error(
            "expert_group_count", "given, because experts are chosen by groups: convert the model anew"
        )
    return (
        config
        | _groups(fields)
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "norm_topk_prob": fields.flag("expert_weights_norm", True),
        }
    )


def _latent(fields: MetadataFields) -> Config:
    """Sizes of latent attention; of files whose keys and values are stored together, and apart."""
    rank, rope_dim = fields.integer("attention.kv_lora_rank"), fields.integer("rope.dimension_count")
    key, value = "attention.key_length", "attention.value_length"
    if fields.has(f"{key}_mla"):  # heads share the latent vector as their only key and value
        fields.require(key, (rank + rope_dim,))
        fields.require(value, (rank,))
        key, value = f"{key}_mla", f"{value}_mla"
    rope = rope_config(fields, rope_dim, fields.integer("context_length"))
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", _LOG_MULTIPLIER)
    if "rope_scaling" in rope:
        # the files keep one of the two, which all published models have equal
        mscale = round(multiplier / _LOG_MULTIPLIER, 6)
        rope["rope_scaling"] |= {"mscale": mscale, "mscale_all_dim": mscale}
    has_rank = fields.has("attention.q_lora_rank")
    return rope | {
        "kv_lora_rank": rank,
        "q_lora_rank": fields.integer("attention.q_lora_rank") if has_rank else None,
        "qk_rope_head_dim": rope_dim,
        "head_dim": rope_dim,  # as transformers has it; the file's is that of the latent vector
        "num_key_value_heads": fields.integer("attention.head_count"),
        "qk_nope_head_dim": fields.integer(key, least=rope_dim + 1) - rope_dim,
        "v_head_dim": fields.integer(value),
    }


DEEPSEEK = {
    "glm4moe": GgufArchitecture(_glm4_moe, mlp_norm="post_attention_norm", later_layers=True),
    "deepseek2": GgufArchitecture(_deepseek2, interleaved_heads=True),
}
