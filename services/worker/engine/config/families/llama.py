"""Llama, Mistral, Qwen2, Qwen3, SmolLM3, Granite: RMS norms before attention and a gated MLP."""

from dataclasses import replace

from services.worker.engine.config.families.decoder import (
    MAX_LAYERS,
    Shape,
    activation,
    decoder,
    inner_size,
    layer_kinds,
    read_shape,
    rms_norm,
    window_of,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.names import LLAMA
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    QueryKeyNorm,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import LAYER_KINDS, RopeDefaults, read_rope

FULL, SLIDING = LAYER_KINDS


def llama_layer(
    fields: JsonFields,
    shape: Shape,
    norm: NormConfig,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    rope: RopeDefaults = RopeDefaults(),  # noqa: B008 (immutable)
) -> LayerConfig:
    """A layer of Llama, which other families change."""
    attention = AttentionConfig(
        scale=shape.head_dim**-0.5,
        rope=read_rope(fields, shape.head_dim, shape.positions, rope),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
    )
    mlp = MlpConfig(
        inner=inner_size(fields), activation=activation(fields, "silu"), bias=mlp_bias, down_bias=mlp_bias
    )
    return LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm)


def windowed(layer: LayerConfig, kinds: tuple[str, ...], window: int) -> tuple[LayerConfig, ...]:
    """A layer of each kind; the sliding ones have the window."""
    sliding = replace(layer, attention=replace(layer.attention, window=window))
    return tuple(sliding if kind == SLIDING else layer for kind in kinds)


def _llama(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048), rms_norm(fields)
    if not fields.missing("sliding_window"):
        # implementations disagree on whether such a model has a window
        raise fields.error("sliding_window", "absent or null in a LlamaForCausalLM")
    if SLIDING in layer_kinds(fields, shape, (FULL,) * shape.layers):
        raise fields.error("layer_types", "all full_attention, because the config gives no window in use")
    bias = fields.flag("attention_bias")
    layer = llama_layer(
        fields, shape, norm, qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias")
    )
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _mistral(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=131072, kv_heads=8), rms_norm(fields)
    fields = fields.with_defaults(sliding_window=4096)
    window = 0 if fields.missing("sliding_window") else fields.integer("sliding_window")
    kinds = ((SLIDING if window else FULL),) * shape.layers
    if layer_kinds(fields, shape, kinds) != kinds:
        raise fields.error("layer_types", "the same for all layers in this architecture")
    return decoder(fields, shape, windowed(llama_layer(fields, shape, norm), kinds, window), final_norm=norm)


def qwen_layers(fields: JsonFields, shape: Shape, layer: LayerConfig) -> tuple[LayerConfig, ...]:
    """Layers from some number on have a window, if the config says that windows are in use."""
    full = fields.count("max_window_layers", 28)
    used = fields.flag("use_sliding_window") and not fields.with_defaults(sliding_window=4096).missing(
        "sliding_window"
    )
    default = tuple(SLIDING if used and index >= full else FULL for index in range(shape.layers))
    kinds = layer_kinds(fields, shape, default)
    if SLIDING in kinds and not used:
        raise fields.error("layer_types", "all full_attention, because the config gives no window in use")
    return windowed(layer, kinds, window_of(fields, kinds, 4096))


def _qwen2(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=32768, kv_heads=32), rms_norm(fields)
    layer = llama_layer(fields, shape, norm, qkv_bias=True)
    return decoder(fields, shape, qwen_layers(fields, shape, layer), final_norm=norm)


def _qwen3(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=32768, kv_heads=32, head_dim=128), rms_norm(fields)
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias)
    layer = replace(layer, attention=replace(layer.attention, qk_norm=QueryKeyNorm(norm=norm)))
    return decoder(fields, shape, qwen_layers(fields, shape, layer), final_norm=norm)


def _smollm3(fields: JsonFields) -> ModelConfig:
    """Some layers do not rotate; only these may have a window."""
    shape, norm = read_shape(fields, positions=32768, kv_heads=4), rms_norm(fields)
    bias, rope = fields.flag("attention_bias"), RopeDefaults(theta=2e6)
    layer = llama_layer(
        fields, shape, norm, qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"), rope=rope
    )
    rotated = _rotated_layers(fields, shape)
    fields.ignore("max_window_layers")  # in files on the hub, and not read by transformers
    used = fields.flag("use_sliding_window") and not fields.missing("sliding_window")
    default = tuple(SLIDING if used and not each else FULL for each in rotated)
    kinds = layer_kinds(fields, shape, default)
    if not used:
        fields.ignore("sliding_window")
        kinds = (FULL,) * shape.layers
    layers = [
        each if rotates else replace(each, attention=replace(each.attention, rope=None))
        for each, rotates in zip(windowed(layer, kinds, window_of(fields, kinds, None)), rotated, strict=True)
    ]
    return decoder(fields, shape, layers, final_norm=norm, tied=True)


def _rotated_layers(fields: JsonFields, shape: Shape) -> list[bool]:
    listed = fields.get("no_rope_layers")  # 1: the layer rotates
    every = fields.integer("no_rope_layer_interval", 4, most=MAX_LAYERS)
    if listed is None:
        return [(index + 1) % every != 0 for index in range(shape.layers)]
    if not isinstance(listed, list) or len(listed) != shape.layers or any(n not in (0, 1) for n in listed):
        raise fields.error("no_rope_layers", f"a list of {shape.layers} numbers, 0 or 1")
    return [bool(each) for each in listed]


def granite_layer(fields: JsonFields, shape: Shape, norm: NormConfig, mlp_bias: bool) -> LayerConfig:
    """A layer with multipliers of its scores and of what it adds."""
    bias = fields.flag("attention_bias")
    fields.not_null("attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)
    attention = replace(layer.attention, scale=fields.number("attention_multiplier", 1.0))
    return replace(layer, attention=attention, residual_scale=fields.number("residual_multiplier", 1.0))


def granite_decoder(fields: JsonFields, shape: Shape, layer: LayerConfig, norm: NormConfig) -> ModelConfig:
    """The whole model, with multipliers of embeddings and logits."""
    return decoder(
        fields,
        shape,
        (layer,) * shape.layers,
        final_norm=norm,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )


def _granite(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048), rms_norm(fields)
    layer = granite_layer(fields, shape, norm, fields.flag("mlp_bias"))
    return granite_decoder(fields, shape, layer, norm)


FAMILIES = {
    "LlamaForCausalLM": Family(_llama, LLAMA),
    "MistralForCausalLM": Family(_mistral, LLAMA),
    "Qwen2ForCausalLM": Family(_qwen2, LLAMA),
    "Qwen3ForCausalLM": Family(_qwen3, LLAMA),
    "SmolLM3ForCausalLM": Family(_smollm3, LLAMA),
    "GraniteForCausalLM": Family(_granite, LLAMA),
}
