"""gpt-oss: a mixture of experts with biases and a clamped SwiGLU, attention sinks, and windows."""

from dataclasses import replace

from services.worker.engine.checkpoint.codes.four_bit_floats import BLOCKS
from services.worker.engine.config.families.decoder import (
    decoder,
    every,
    layer_kinds,
    read_shape,
    rms_norm,
    window_of,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import llama_layer, windowed
from services.worker.engine.config.families.mixtures import count_name, read_experts
from services.worker.engine.config.families.names import EXPERT_GATE_UP, LLAMA, stacked_experts
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults


def _gpt_oss(fields: JsonFields) -> ModelConfig:
    shape, norm = read_shape(fields, positions=131072, kv_heads=8, head_dim=64), rms_norm(fields, 1e-5)
    bias = fields.flag("attention_bias", True)
    rope = RopeDefaults(theta=150000.0, fields=_GPT_OSS_YARN)
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, rope=rope)
    layer = replace(layer, attention=replace(layer.attention, sinks=True))
    kinds = layer_kinds(fields, shape, every(2, shape))
    count = count_name(fields, "num_local_experts", "num_experts")
    experts = read_experts(fields, count, "intermediate_size", default=(128, 4, None))
    fields.require("hidden_act", "silu")
    fields.require("swiglu_alpha", 1.702)
    fields.require("swiglu_limit", 7)
    fields.require("experts_per_token", experts.chosen)
    quantized = fields.table("quantization_config")
    quantized.require("quant_method", "mxfp4")
    quantized.ignore("modules_to_not_convert", "dequantize")  # the tensors in the files say it
    fields.ignore("initial_context_length")  # repeats the rotary embedding's original length
    expert = replace(experts.expert, activation="clamped_swiglu", bias=True, down_bias=True)
    experts = replace(experts, expert=expert, scoring="softmax_chosen", router_bias=True)
    layers = windowed(replace(layer, mlp=experts), kinds, window_of(fields, kinds, 128))
    return decoder(fields, shape, layers, final_norm=norm, context_length=shape.positions)


_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

FAMILIES = {
    "GptOssForCausalLM": Family(
        _gpt_oss,
        LLAMA.with_locations(
            {
                "mlp.router": "mlp.router",
                **{
                    name: (
                        # as floats; then as four-bit floats, stored as [out, in]
                        replace(location, transposed=True, alternating=name in EXPERT_GATE_UP),
                        replace(location, suffixes=(BLOCKS, "_bias"), alternating=name in EXPERT_GATE_UP),
                    )
                    for name, location in stacked_experts("mlp.experts", "gate_up_proj", "down_proj").items()
                },
            }
        ),
    ),
}
