"""StableLM, StarCoder 2, Nemotron, Cohere and Cohere 2: layer norms in place of RMS norms."""

from dataclasses import replace

from services.worker.engine.checkpoint.names.file_names import TensorLocation
from services.worker.engine.config.families.decoder import (
    Shape,
    decoder,
    every,
    layer_kinds,
    layer_norm,
    read_shape,
    window_of,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import SLIDING, llama_layer, windowed
from services.worker.engine.config.families.names import LLAMA
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import LayerConfig, NormConfig, QueryKeyNorm
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults


def _stablelm(fields: JsonFields) -> ModelConfig:
    shape = read_shape(fields, positions=4096, kv_heads=32, own_head_dim=False)
    norm, parallel = layer_norm(fields), fields.flag("use_parallel_residual")
    layer = llama_layer(
        fields, shape, norm, qkv_bias=fields.flag("use_qkv_bias"), rope=RopeDefaults(part=0.25)
    )
    if fields.flag("qk_layernorm"):
        heads = QueryKeyNorm(norm=replace(norm, bias=False), scope="heads")
        layer = replace(layer, attention=replace(layer.attention, qk_norm=heads))
    layer = replace(layer, parallel=parallel, mlp_norm=None if parallel else norm)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _starcoder2(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=4096, kv_heads=2), layer_norm(fields, "norm_epsilon")
    bias = fields.flag("use_bias", True)
    # in files on the hub, and not read by transformers
    fields.ignore("activation_function", "layer_norm_epsilon")
    for name, value in (("mlp_type", "default"), ("norm_type", "layer_norm"), ("scale_attn_weights", True)):
        fields.require(name, value)
    for name in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        fields.ignore(name)
    layer = llama_layer(
        fields.with_defaults(hidden_act="gelu_pytorch_tanh"),
        shape,
        norm,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
    layer = _not_gated(layer)
    if not fields.missing("sliding_window"):
        layer = replace(layer, attention=replace(layer.attention, window=fields.integer("sliding_window")))
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm, tied=True)


def _nemotron(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=4096), layer_norm(fields, "norm_eps", offset=1.0)
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    layer = llama_layer(
        fields.with_defaults(hidden_act="relu2"),
        shape,
        norm,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=mlp_bias,
        rope=RopeDefaults(part=0.5),
    )
    return decoder(fields, shape, (_not_gated(layer),) * shape.layers, final_norm=norm)


def _not_gated(layer: LayerConfig) -> LayerConfig:
    return replace(layer, mlp=replace(layer.dense_mlp, gated=False))


def _cohere_layer(fields: JsonFields, shape: Shape, norm: NormConfig, theta: float) -> LayerConfig:
    """Attention and MLP in parallel, after one norm."""
    bias = fields.flag("attention_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, rope=RopeDefaults(theta=theta))
    return replace(layer, mlp_norm=None, parallel=True)


def _cohere(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=8192), layer_norm(fields, bias=False)
    layer = _cohere_layer(fields, shape, norm, 5e5)
    if fields.flag("use_qk_norm"):
        heads = QueryKeyNorm(norm=norm, scope="heads")
        layer = replace(layer, attention=replace(layer.attention, qk_norm=heads))
    return _cohere_decoder(fields, shape, (layer,) * shape.layers, norm)


def _cohere2(fields: JsonFields) -> ModelConfig:
    """Only layers with a window rotate."""
    shape, norm = read_shape(fields, positions=8192), layer_norm(fields, bias=False)
    layer = _cohere_layer(fields, shape, norm, 1e4)
    if fields.missing("layer_types"):
        default = every(fields.integer("sliding_window_pattern", 4), shape)
    else:
        default = ()
        fields.ignore("sliding_window_pattern")
    _require_cohere2(fields)
    kinds = layer_kinds(fields, shape, default)
    full = replace(layer, attention=replace(layer.attention, rope=None))
    layers = tuple(
        each if kind == SLIDING else full
        for each, kind in zip(windowed(layer, kinds, window_of(fields, kinds, 4096)), kinds, strict=True)
    )
    return _cohere_decoder(fields, shape, layers, norm)


def _require_cohere2(fields: JsonFields) -> None:
    """What files on the hub say beside, with the values that all of them have."""
    fields.require("layer_switch", 4)
    fields.require("order_of_interleaved_layers", "local_attn_first")
    fields.require("position_embedding_type", "rope_gptj")
    fields.require("rotary_pct", 1)
    for name in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block"):
        fields.require(name, True)
    for name in ("use_parallel_embedding", "use_qk_norm"):
        fields.require(name, False)


def _cohere_decoder(
    fields: JsonFields, shape: Shape, layers: tuple[LayerConfig, ...], norm: NormConfig
) -> ModelConfig:
    scale = fields.number("logit_scale", 0.0625)
    return decoder(fields, shape, layers, final_norm=norm, tied=True, logit_scale=scale)


_NOT_GATED = LLAMA.with_locations({"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"})
_COHERE = replace(LLAMA, interleaved=True)

FAMILIES = {
    "StableLmForCausalLM": Family(
        _stablelm,
        LLAMA.with_locations(
            {
                "self_attn.q_norm.{}": "self_attn.q_layernorm.norms.{}",
                "self_attn.k_norm.{}": "self_attn.k_layernorm.norms.{}",
            }
        ),
    ),
    "Starcoder2ForCausalLM": Family(_starcoder2, _NOT_GATED),
    "NemotronForCausalLM": Family(_nemotron, LLAMA),
    "CohereForCausalLM": Family(
        _cohere,
        _COHERE.with_locations(
            {
                "self_attn.q_norm.{}": TensorLocation("self_attn.q_norm", stacked=True),
                "self_attn.k_norm.{}": TensorLocation("self_attn.k_norm", stacked=True),
            }
        ),
    ),
    "Cohere2ForCausalLM": Family(_cohere2, _COHERE),
}
