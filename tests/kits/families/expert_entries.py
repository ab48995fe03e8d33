"""Architectures with mixtures of experts."""

from typing import Any

from tests.kits.families.entries import COMMON, GROUPED, SLIDING, WINDOW, FamilyEntry, rope

ROUTED: dict[str, Any] = {"moe_intermediate_size": 40, "num_experts_per_tok": 3}
LATENT: dict[str, Any] = COMMON | {
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    **ROUTED,
}
# the length that this scaling makes is 128
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

EXPERTS: dict[str, FamilyEntry] = {
    "mixtral": FamilyEntry(
        architecture="MixtralForCausalLM",
        model_type="mixtral",
        fields=GROUPED | {"intermediate_size": 48, "num_local_experts": 6, "sliding_window": WINDOW},
    ),
    "qwen2_moe": FamilyEntry(
        architecture="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        fields=COMMON
        | ROUTED
        | {"num_experts": 8, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1]},
    ),
    "qwen3_moe": FamilyEntry(
        architecture="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        fields=GROUPED | ROUTED | {"num_local_experts": 8, "norm_topk_prob": True, "mlp_only_layers": [0]},
    ),
    "olmoe": FamilyEntry(
        architecture="OlmoeForCausalLM",
        model_type="olmoe",
        fields=COMMON
        | {"intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 3, "clip_qkv": 1.5},
    ),
    "granitemoe": FamilyEntry(
        architecture="GraniteMoeForCausalLM",
        model_type="granitemoe",
        fields=COMMON
        | {
            "intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.2,
        },
    ),
    "glm4_moe": FamilyEntry(
        architecture="Glm4MoeForCausalLM",
        model_type="glm4_moe",
        fields=GROUPED
        | ROUTED
        | {
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
        }
        | rope(partial_rotary_factor=0.5),
    ),
    "gpt_oss": FamilyEntry(
        architecture="GptOssForCausalLM",
        model_type="gpt_oss",
        fields=GROUPED
        | {
            "intermediate_size": 48,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
        }
        | rope(**YARN)
        | {"max_position_embeddings": 128},
    ),
    "deepseek_v2": FamilyEntry(
        architecture="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        fields=LATENT | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek_v2, lite": FamilyEntry(
        architecture="DeepseekV2ForCausalLM",
        model_type="deepseek_v2",
        fields=LATENT
        | {"q_lora_rank": None}
        | {"max_position_embeddings": 128}
        | rope(**YARN, mscale=0.7, mscale_all_dim=0.7),
    ),
    "deepseek_v3": FamilyEntry(
        architecture="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        fields=LATENT
        | {"n_group": 4, "topk_group": 2, "norm_topk_prob": True}
        | {"max_position_embeddings": 128}
        | rope(**YARN, mscale=1.0, mscale_all_dim=1.0),
    ),
}
