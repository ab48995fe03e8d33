"""DeepSeek-V2 and V3: latent attention, with mixtures of experts."""

import math
from dataclasses import replace

from services.worker.engine.checkpoint.names.file_names import TensorLocation
from services.worker.engine.config.families.decoder import (
    MAX_HEAD_DIM,
    MAX_HIDDEN,
    Shape,
    activation,
    decoder,
    inner_size,
    read_shape,
    rms_norm,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.mixtures import (
    dense_first,
    grouped_experts,
    read_experts,
    with_shared,
)
from services.worker.engine.config.families.names import HEADS_KV, SHARED_EXPERTS
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import (
    AttentionConfig,
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig, read_rope

_LATENT_EPS = 1e-6  # of the norms of latent vectors, whatever `rms_norm_eps` says


def _shape(fields: JsonFields, positions: int) -> tuple[Shape, LatentConfig]:
    """All heads have their own keys, made from one latent vector; a head's size is that of its query."""
    fields.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    # a null query rank is none, an absent one 1536
    rank = 0 if fields.get("q_lora_rank") is None and "q_lora_rank" in fields.raw else None
    latent = LatentConfig(
        rank=fields.integer("kv_lora_rank", 512, most=MAX_HIDDEN),
        query_rank=fields.integer("q_lora_rank", 1536, most=MAX_HIDDEN) if rank is None else rank,
        rope_dim=fields.integer("qk_rope_head_dim", 64, most=MAX_HEAD_DIM),
        plain_dim=fields.integer("qk_nope_head_dim", 128, most=MAX_HEAD_DIM),
        value_dim=fields.integer("v_head_dim", 128, most=MAX_HEAD_DIM),
        eps=_LATENT_EPS,
    )
    head_dim = latent.plain_dim + latent.rope_dim
    shape = read_shape(fields, positions=positions, head_dim=head_dim, own_head_dim=False, grouped=False)
    return shape, latent


def _layer(fields: JsonFields, shape: Shape, latent: LatentConfig, norm: NormConfig) -> LayerConfig:
    rope = read_rope(fields, latent.rope_dim, shape.positions)
    attention = AttentionConfig(
        scale=shape.head_dim**-0.5 * _score_scale(rope) ** 2, rope=rope, latent=latent
    )
    mlp = MlpConfig(inner=inner_size(fields), activation=activation(fields, "silu"))
    return LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm)


def _score_scale(rope: RopeConfig) -> float:
    """Of queries and of keys, in models with a stretched context (the authors' `mscale`)."""
    if not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0


def _experts(fields: JsonFields, default: tuple[int, int, int]) -> ExpertsConfig:
    for name in ("moe_layer_freq", "ep_size"):
        fields.require(name, 1)
    fields.ignore("num_nextn_predict_layers", "num_mtp_layers")  # layers beyond the last, which are not read
    return read_experts(fields, "n_routed_experts", "moe_intermediate_size", default=default)


def _v2(fields: JsonFields) -> ModelConfig:
    shape, latent = _shape(fields, 2048)
    norm = rms_norm(fields)
    layer = _layer(fields, shape, latent, norm)
    experts = with_shared(fields, _experts(fields, (64, 6, 1407)), 2)
    experts = replace(experts, scale=fields.number("routed_scaling_factor", 1.0))
    fields.require("scoring_func", "softmax")
    fields.require("norm_topk_prob", False)  # which transformers does not read
    if fields.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy"):
        experts = replace(
            grouped_experts(fields, experts, 1, 1),
            scoring="softmax",
            normalize=False,
            group_score="max",
            selection_bias=False,
        )
    else:
        fields.ignore("n_group", "topk_group")
    return decoder(fields, shape, dense_first(fields, shape, layer, experts, 0), final_norm=norm)


def _v3(fields: JsonFields) -> ModelConfig:
    shape, latent = _shape(fields, 4096)
    norm = rms_norm(fields)
    layer = _layer(fields, shape, latent, norm)
    experts = grouped_experts(fields, with_shared(fields, _experts(fields, (256, 8, 2048)), 1), 8, 4)
    experts = replace(experts, scale=fields.number("routed_scaling_factor", 2.5))
    fields.require("scoring_func", "sigmoid")
    fields.require("topk_method", "noaux_tc")
    fields.not_null("rope_interleave")
    fields.require("rope_interleave", True)
    return decoder(fields, shape, dense_first(fields, shape, layer, experts, 3), final_norm=norm)


_NAMES = replace(
    SHARED_EXPERTS.with_locations(
        {
            "self_attn.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
            "self_attn.kv_a_norm": "self_attn.kv_a_layernorm",
            "self_attn.q_a_norm": "self_attn.q_a_layernorm",
            **{part: TensorLocation("self_attn.kv_b_proj", HEADS_KV, by_item=True) for part in HEADS_KV},
        }
    ),
    interleaved=True,
    later_layers=True,
)

FAMILIES = {
    "DeepseekV2ForCausalLM": Family(_v2, _NAMES),
    "DeepseekV3ForCausalLM": Family(_v3, _NAMES),
}
