"""OLMo 2 and 3, EXAONE 4, GLM and GLM 4, BitNet: RMS norms at other points of a layer than Llama's."""

from dataclasses import replace

from services.worker.engine.config.families.decoder import (
    Shape,
    decoder,
    every,
    layer_kinds,
    read_shape,
    rms_norm,
    window_of,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import FULL, SLIDING, llama_layer, windowed
from services.worker.engine.config.families.names import BETWEEN_NORMS, GATE_UP, LLAMA, fused
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import LayerConfig, NormConfig, QueryKeyNorm
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults, read_rope


def _after_only(layer: LayerConfig, norm: NormConfig, qk_norm: QueryKeyNorm) -> LayerConfig:
    """A layer with norms after attention and after the MLP, and of queries and keys."""
    return replace(
        layer,
        attention=replace(layer.attention, qk_norm=qk_norm),
        input_norm=None,
        mlp_norm=None,
        post_attention_norm=norm,
        post_mlp_norm=norm,
    )


def _olmo(fields: JsonFields, shape: Shape, norm: NormConfig, rope: RopeDefaults) -> LayerConfig:
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, rope=rope)
    return _after_only(layer, norm, QueryKeyNorm(norm=norm, scope="all"))


def _olmo2(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048), rms_norm(fields, 1e-5)
    layer = _olmo(fields, shape, norm, RopeDefaults())
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _olmo3(fields: JsonFields) -> ModelConfig:
    """Scaling of the rotary embedding is for layers with full attention only."""
    shape, norm = read_shape(fields, positions=2048), rms_norm(fields, 1e-5)
    layer = _olmo(fields, shape, norm, RopeDefaults(theta=5e5, by_kind=True))
    local = read_rope(fields, shape.head_dim, shape.positions, RopeDefaults(theta=5e5), SLIDING)
    kinds = layer_kinds(fields, shape, every(4, shape))
    layers = [
        replace(each, attention=replace(each.attention, rope=local)) if kind == SLIDING else each
        for each, kind in zip(windowed(layer, kinds, window_of(fields, kinds, 4096)), kinds, strict=True)
    ]
    return decoder(fields, shape, layers, final_norm=norm)


def _exaone4(fields: JsonFields) -> ModelConfig:
    """In models with windows only the layers that have one rotate."""
    shape, norm = read_shape(fields, positions=2048, kv_heads=32), rms_norm(fields, 1e-5)
    layer = _after_only(llama_layer(fields, shape, norm), norm, QueryKeyNorm(norm=norm))
    no_windows = "sliding_window" in fields.raw and fields.missing("sliding_window")
    if no_windows or not fields.missing("layer_types"):
        fields.ignore("sliding_window_pattern")
        default: tuple[str, ...] = (FULL,) * shape.layers
    else:
        default = every(fields.integer("sliding_window_pattern", 4), shape)
    kinds = layer_kinds(fields, shape, default)
    window = window_of(fields, kinds, 4096)
    full = layer if no_windows else replace(layer, attention=replace(layer.attention, rope=None))
    layers = [
        each if kind == SLIDING else full
        for each, kind in zip(windowed(layer, kinds, window), kinds, strict=True)
    ]
    return decoder(fields, shape, layers, final_norm=norm)


def _glm_layer(fields: JsonFields, shape: Shape, norm: NormConfig) -> LayerConfig:
    bias = fields.flag("attention_bias", True)
    return llama_layer(fields, shape, norm, qkv_bias=bias, rope=RopeDefaults(part=0.5))


def _glm(fields: JsonFields) -> ModelConfig:
    shape, norm = _glm_shape(fields), rms_norm(fields, 0.00000015625)
    layer = _glm_layer(fields, shape, norm)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _glm4(fields: JsonFields) -> ModelConfig:
    shape, norm = _glm_shape(fields), rms_norm(fields, 0.00000015625)
    layer = replace(_glm_layer(fields, shape, norm), post_attention_norm=norm, post_mlp_norm=norm)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _glm_shape(fields: JsonFields) -> Shape:
    return read_shape(fields, positions=131072, kv_heads=2, head_dim=128)


def _bitnet(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048, kv_heads=5), rms_norm(fields, 1e-5)
    bias = fields.flag("attention_bias")
    fields = fields.with_defaults(hidden_act="relu2")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, rope=RopeDefaults(theta=5e5))
    if shape.heads * shape.head_dim != shape.hidden:
        raise fields.error("head_dim", "such that all heads together are as wide as hidden_size")
    layer = replace(
        layer,
        attention=replace(layer.attention, output_norm=norm),
        mlp=replace(layer.dense_mlp, inner_norm=norm),
    )
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


_GLM = replace(LLAMA.with_locations(fused("mlp.gate_up_proj", GATE_UP)), interleaved=True)

FAMILIES = {
    "Olmo2ForCausalLM": Family(_olmo2, BETWEEN_NORMS),
    "Olmo3ForCausalLM": Family(_olmo3, BETWEEN_NORMS),
    "Exaone4ForCausalLM": Family(_exaone4, BETWEEN_NORMS),
    "GlmForCausalLM": Family(_glm, _GLM),
    "Glm4ForCausalLM": Family(
        _glm4,
        _GLM.with_locations(
            {
                "mlp_norm": "post_attention_layernorm",
                "post_attention_norm": "post_self_attn_layernorm",
                "post_mlp_norm": "post_mlp_layernorm",
            }
        ),
    ),
    "BitNetForCausalLM": Family(
        _bitnet,
        LLAMA.with_locations(
            {"self_attn.output_norm": "self_attn.attn_sub_norm", "mlp.inner_norm": "mlp.ffn_sub_norm"}
        ),
    ),
}
