"""Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, GraniteMoE and GLM-4-MoE: mixtures of experts."""

from dataclasses import replace

from services.worker.engine.checkpoint.names.file_names import TensorLocation
from services.worker.engine.config.families.decoder import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Shape,
    activation,
    decoder,
    inner_size,
    layer_kinds,
    read_shape,
    rms_norm,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import (
    FULL,
    SLIDING,
    granite_decoder,
    granite_layer,
    llama_layer,
    windowed,
)
from services.worker.engine.config.families.names import (
    EXPERTS,
    LLAMA,
    SHARED_EXPERTS,
    stacked_experts,
)
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import (
    ExpertsConfig,
    LayerConfig,
    MlpConfig,
    QueryKeyNorm,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults


def read_experts(
    fields: JsonFields, count: str, inner: str, *, default: tuple[int, int, int | None]
) -> ExpertsConfig:
    """Experts that are gated MLPs.

    Args:
        count: The field with the number of experts.
        inner: The field with the inner features of one.
        default: Number of experts, how many a token takes, and inner features.
    """
    number = fields.integer(count, default[0], most=MAX_EXPERTS)
    return ExpertsConfig(
        count=number,
        chosen=fields.integer("num_experts_per_tok", default[1], most=number),
        expert=MlpConfig(inner=inner_size(fields, default[2], inner), activation=activation(fields, "silu")),
    )


def _mixtral(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=131072, kv_heads=8), rms_norm(fields, 1e-5)
    layer = llama_layer(fields, shape, norm, rope=RopeDefaults(theta=1e6))
    count = count_name(fields, "num_local_experts", "num_experts")
    experts = read_experts(fields, count, "intermediate_size", default=(8, 2, None))
    layer = replace(layer, mlp=replace(experts, normalize=True))
    return decoder(fields, shape, _one_window(fields, shape, layer), final_norm=norm)


def count_name(fields: JsonFields, *names: str) -> str:
    """The one of these names that the file has; transformers 5 writes another one than files of before."""
    found = [name for name in names if not fields.missing(name)]
    return found[0] if found else names[0]


def _one_window(fields: JsonFields, shape: Shape, layer: LayerConfig) -> tuple[LayerConfig, ...]:
    window = 0 if fields.missing("sliding_window") else fields.integer("sliding_window")
    return windowed(layer, ((SLIDING if window else FULL),) * shape.layers, window)


def _sparse(fields: JsonFields, dense: tuple[LayerConfig, ...], experts: ExpertsConfig) -> list[LayerConfig]:
    """Qwen's choice of the layers that have experts."""
    step = fields.integer("decoder_sparse_step", 1, most=MAX_LAYERS)
    only = fields.get("mlp_only_layers") or []
    if not isinstance(only, list) or any(type(each) is not int for each in only):
        raise fields.error("mlp_only_layers", "a list of numbers of layers")
    return [
        layer if index in only or (index + 1) % step else replace(layer, mlp=experts)
        for index, layer in enumerate(dense)
    ]


def _qwen2_moe(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=32768, kv_heads=16), rms_norm(fields)
    layer = llama_layer(fields, shape, norm, qkv_bias=fields.flag("qkv_bias", True))
    if not fields.flag("use_sliding_window"):
        fields.ignore("sliding_window", "max_window_layers")
    else:
        # implementations disagree on which layers these are
        raise fields.error("use_sliding_window", "false in a mixture of experts")
    if SLIDING in layer_kinds(fields, shape, (FULL,) * shape.layers):
        raise fields.error("layer_types", "all full_attention, because the config gives no window in use")
    experts = read_experts(fields, "num_experts", "moe_intermediate_size", default=(60, 4, 1408))
    shared = inner_size(fields, 5632, "shared_expert_intermediate_size")
    experts = replace(
        experts,
        normalize=fields.flag("norm_topk_prob"),
        shared=replace(experts.expert, inner=shared),
        shared_gate=True,
    )
    layers = _sparse(fields, (layer,) * shape.layers, experts)
    return decoder(fields, shape, layers, final_norm=norm)


def _qwen3_moe(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=32768, kv_heads=4), rms_norm(fields)
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias)
    layer = replace(layer, attention=replace(layer.attention, qk_norm=QueryKeyNorm(norm=norm)))
    fields.ignore("max_window_layers")  # in files on the hub, and read by no implementation
    used = fields.flag("use_sliding_window")
    layers = _one_window(fields.with_defaults(sliding_window=4096), shape, layer) if used else ()
    if not used:
        fields.ignore("sliding_window")
    count = count_name(fields, "num_experts", "num_local_experts")
    experts = read_experts(fields, count, "moe_intermediate_size", default=(128, 8, 768))
    experts = replace(experts, normalize=fields.flag("norm_topk_prob"))
    dense = layers or (layer,) * shape.layers
    return decoder(fields, shape, _sparse(fields, dense, experts), final_norm=norm)


def _olmoe(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=4096), rms_norm(fields, 1e-5)
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias)
    clip = 0.0 if fields.missing("clip_qkv") else fields.number("clip_qkv")
    attention = replace(layer.attention, qk_norm=QueryKeyNorm(norm=norm, scope="all"), clip_qkv=clip)
    experts = read_experts(fields, "num_experts", "intermediate_size", default=(64, 8, 2048))
    experts = replace(experts, normalize=fields.flag("norm_topk_prob"))
    layer = replace(layer, attention=attention, mlp=experts)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _granitemoe(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048), rms_norm(fields)
    experts = read_experts(fields, "num_local_experts", "intermediate_size", default=(8, 2, 11008))
    experts = replace(experts, scoring="softmax_chosen")
    layer = replace(granite_layer(fields, shape, norm, mlp_bias=False), mlp=experts)
    return granite_decoder(fields, shape, layer, norm)


def grouped_experts(fields: JsonFields, experts: ExpertsConfig, groups: int, chosen: int) -> ExpertsConfig:
    """Experts that are scored one by one and chosen from the best groups (DeepSeek-V3)."""
    fields.not_null("norm_topk_prob")
    count = fields.integer("n_group", groups, most=experts.count)
    taken = fields.integer("topk_group", chosen, most=count)
    if experts.count % count or experts.count // count < 2:
        raise fields.error("n_group", f"a number of groups of 2 or more of {experts.count} experts")
    if taken * (experts.count // count) < experts.chosen:
        raise fields.error("topk_group", f"groups with num_experts_per_tok={experts.chosen} experts or more")
    return replace(
        experts,
        scoring="sigmoid",
        normalize=fields.flag("norm_topk_prob", True),
        groups=count,
        chosen_groups=taken,
        group_score="top2",
        selection_bias=True,
    )


def with_shared(fields: JsonFields, experts: ExpertsConfig, default: int) -> ExpertsConfig:
    """Shared experts are one MLP of so many times an expert's size."""
    times = fields.integer("n_shared_experts", default, most=MAX_EXPERTS)
    return replace(experts, shared=replace(experts.expert, inner=times * experts.expert.inner))


def dense_first(
    fields: JsonFields, shape: Shape, layer: LayerConfig, experts: ExpertsConfig, default: int
) -> list[LayerConfig]:
    """The first layers have no experts."""
    first = fields.count("first_k_dense_replace", default)
    sparse = replace(layer, mlp=experts)
    return [layer if index < first else sparse for index in range(shape.layers)]


def _glm4_moe(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=131072, kv_heads=8), rms_norm(fields, 1e-5)
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, rope=RopeDefaults(part=0.5))
    if fields.flag("use_qk_norm"):
        layer = replace(layer, attention=replace(layer.attention, qk_norm=QueryKeyNorm(norm=norm)))
    count = count_name(fields, "n_routed_experts", "num_local_experts")
    experts = read_experts(fields, count, "moe_intermediate_size", default=(128, 8, 1408))
    experts = grouped_experts(fields, with_shared(fields, experts, 1), 1, 1)
    experts = replace(experts, scale=fields.number("routed_scaling_factor", 1.0))
    fields.ignore("num_nextn_predict_layers", "num_mtp_layers")  # layers beyond the last, which are not read
    return decoder(fields, shape, dense_first(fields, shape, layer, experts, 1), final_norm=norm)


_MIXTRAL_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

FAMILIES = {
    "MixtralForCausalLM": Family(
        _mixtral,
        EXPERTS.with_locations(
            {
                "mlp.router": (TensorLocation("block_sparse_moe.gate"), TensorLocation("mlp.gate")),
                **{
                    f"mlp.experts.{{}}.{part}": (
                        TensorLocation(f"block_sparse_moe.experts.{{}}.{name}"),
                        *EXPERTS.modules[f"mlp.experts.{{}}.{part}"],
                    )
                    for part, name in _MIXTRAL_NAMES.items()
                },
            }
        ),
    ),
    "Qwen2MoeForCausalLM": Family(
        _qwen2_moe,
        EXPERTS.with_locations(
            {
                **{
                    f"mlp.shared.{part}": f"mlp.shared_expert.{part}"
                    for part in ("gate_proj", "up_proj", "down_proj")
                },
                "mlp.shared_gate": "mlp.shared_expert_gate",
            }
        ),
    ),
    "Qwen3MoeForCausalLM": Family(_qwen3_moe, EXPERTS),
    "OlmoeForCausalLM": Family(_olmoe, EXPERTS),
    "GraniteMoeForCausalLM": Family(
        _granitemoe,
        LLAMA.with_locations(
            {
                "mlp.router": (
                    TensorLocation("block_sparse_moe.router.layer"),
                    TensorLocation("block_sparse_moe.router"),
                ),
                **{
                    name: (location, memory)
                    for (name, location), memory in zip(
                        stacked_experts(
                            "block_sparse_moe", "input_linear", "output_linear", ".weight"
                        ).items(),
                        stacked_experts("block_sparse_moe.experts", "gate_up_proj", "down_proj").values(),
                        strict=True,
                    )
                },
            }
        ),
    ),
    "Glm4MoeForCausalLM": Family(_glm4_moe, replace(SHARED_EXPERTS, later_layers=True)),
}
