"""Phi, with attention and MLP in parallel, and Phi-3 and 4, with fused matrices and LongRoPE."""

from dataclasses import replace

from services.worker.engine.config.families.decoder import (
    activation,
    decoder,
    inner_size,
    layer_norm,
    read_shape,
    rms_norm,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import llama_layer
from services.worker.engine.config.families.names import GATE_UP, LLAMA, QKV, fused
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import AttentionConfig, LayerConfig, MlpConfig, QueryKeyNorm
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults, read_rope


def _phi(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=2048), layer_norm(fields)
    attention = AttentionConfig(
        scale=shape.head_dim**-0.5,
        rope=read_rope(fields, shape.head_dim, shape.positions, RopeDefaults(part=0.5)),
        qkv_bias=True,
        output_bias=True,
        qk_norm=QueryKeyNorm(norm=norm) if fields.flag("qk_layernorm") else None,
    )
    mlp = MlpConfig(
        inner=inner_size(fields),
        activation=activation(fields, "gelu_new"),
        gated=False,
        bias=True,
        down_bias=True,
    )
    layer = LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=None, parallel=True)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm, head_bias=True)


def _phi3(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=4096), rms_norm(fields, 1e-5)
    for name, value in (("full_attn_mod", 1), ("interpolate_factor", 1), ("lm_head_bias", False)):
        fields.require(name, value)  # in files on the hub, and not read by transformers
    layer = llama_layer(fields, shape, norm, rope=RopeDefaults(part=1.0, original=4096))
    if not fields.missing("sliding_window"):
        layer = replace(layer, attention=replace(layer.attention, window=fields.integer("sliding_window")))
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


FAMILIES = {
    "PhiForCausalLM": Family(
        _phi,
        LLAMA.with_locations(
            {
                "model.norm": "model.final_layernorm",
                "self_attn.o_proj": "self_attn.dense",
                "self_attn.q_norm": "self_attn.q_layernorm",
                "self_attn.k_norm": "self_attn.k_layernorm",
                "mlp.up_proj": "mlp.fc1",
                "mlp.down_proj": "mlp.fc2",
            }
        ),
    ),
    "Phi3ForCausalLM": Family(
        _phi3,
        LLAMA.with_locations({**fused("self_attn.qkv_proj", QKV), **fused("mlp.gate_up_proj", GATE_UP)}),
    ),
}
