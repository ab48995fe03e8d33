"""Gemma, Gemma 2 and Gemma 3: norms that files store less 1, scaled embeddings, soft caps, local layers."""

from dataclasses import replace

from services.worker.engine.config.families.decoder import (
    ACTIVATIONS,
    Shape,
    activation,
    decoder,
    every,
    inner_size,
    layer_kinds,
    optional_number,
    read_shape,
    rms_norm,
    window_of,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import FULL, SLIDING, windowed
from services.worker.engine.config.families.names import BETWEEN_NORMS, LLAMA
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import (
    Activation,
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    QueryKeyNorm,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig, RopeDefaults, read_rope


def _layer(fields: JsonFields, norm: NormConfig, gate: Activation, attention: AttentionConfig) -> LayerConfig:
    bias = fields.flag("attention_bias")
    return LayerConfig(
        attention=replace(attention, qkv_bias=bias, output_bias=bias),
        mlp=MlpConfig(inner=inner_size(fields), activation=gate),
        input_norm=norm,
        mlp_norm=norm,
    )


def _gemma(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=8192, kv_heads=16, head_dim=256), rms_norm(fields, offset=1.0)
    # old files say gelu and mean its approximation
    gate = fields.choice("hidden_act", ACTIVATIONS | {"gelu": "gelu_tanh"}, "gelu")
    fields.require("hidden_activation", "gelu_pytorch_tanh")
    rope = read_rope(fields, shape.head_dim, shape.positions)
    layer = _layer(fields, norm, gate, AttentionConfig(scale=shape.head_dim**-0.5, rope=rope))
    layers = (layer,) * shape.layers
    return decoder(fields, shape, layers, final_norm=norm, tied=True, embedding_scale=shape.hidden**0.5)


def _gemma2(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=8192, kv_heads=4, head_dim=256), rms_norm(fields, offset=1.0)
    rope = read_rope(fields, shape.head_dim, shape.positions)
    layer = _soft_layer(fields, norm, rope, optional_number(fields, "attn_logit_softcapping", 50.0))
    kinds = layer_kinds(fields, shape, every(2, shape))
    window = window_of(fields, kinds, 4096)
    fields.require("sliding_window_size", window)  # in some files on the hub, and read by no implementation
    return _soft_decoder(fields, shape, windowed(layer, kinds, window), norm, softcap=30.0)


def _gemma3(fields: JsonFields) -> ModelConfig:
    """Sliding layers have a rotary embedding of their own."""
    shape, norm = read_shape(fields, positions=131072, kv_heads=4, head_dim=256), rms_norm(fields, offset=1.0)
    local = RopeDefaults(theta=1e4, theta_name="rope_local_base_freq")
    ropes = {
        FULL: read_rope(fields, shape.head_dim, shape.positions, RopeDefaults(theta=1e6), FULL),
        SLIDING: read_rope(fields, shape.head_dim, shape.positions, local, SLIDING),
    }
    layer = _soft_layer(fields, norm, ropes[FULL])
    layer = replace(layer, attention=replace(layer.attention, qk_norm=QueryKeyNorm(norm=norm)))
    pattern = fields.integer("sliding_window_pattern", fields.raw.get("_sliding_window_pattern", 6))
    fields.ignore("_sliding_window_pattern")
    kinds = layer_kinds(fields, shape, every(pattern, shape))
    layers = [
        replace(each, attention=replace(each.attention, rope=ropes[kind]))
        for each, kind in zip(windowed(layer, kinds, window_of(fields, kinds, 4096)), kinds, strict=True)
    ]
    fields.require("attn_logit_softcapping")  # which transformers does not read here
    return _soft_decoder(fields, shape, layers, norm, softcap=None)


def _soft_layer(fields: JsonFields, norm: NormConfig, rope: RopeConfig, softcap: float = 0.0) -> LayerConfig:
    fields.ignore("hidden_act")  # files have both
    gate = activation(fields, "gelu_pytorch_tanh", "hidden_activation")
    attention = AttentionConfig(
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        rope=rope,
        softcap=softcap,
    )
    layer = _layer(fields, norm, gate, attention)
    return replace(layer, post_attention_norm=norm, post_mlp_norm=norm)


def _soft_decoder(
    fields: JsonFields,
    shape: Shape,
    layers: "tuple[LayerConfig, ...] | list[LayerConfig]",
    norm: NormConfig,
    *,
    softcap: float | None,
) -> ModelConfig:
    return decoder(
        fields,
        shape,
        layers,
        final_norm=norm,
        tied=True,
        embedding_scale=shape.hidden**0.5,
        logit_softcap=optional_number(fields, "final_logit_softcapping", softcap),
        context_length=shape.positions,
    )


FAMILIES = {
    "GemmaForCausalLM": Family(_gemma, LLAMA),
    "Gemma2ForCausalLM": Family(_gemma2, BETWEEN_NORMS),
    "Gemma3ForCausalLM": Family(_gemma3, BETWEEN_NORMS),
}
