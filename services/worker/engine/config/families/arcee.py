"""Arcee: Llama with an MLP that has no gate. The example of docs/models.md."""

from dataclasses import replace

from services.worker.engine.config.families.decoder import decoder, read_shape, rms_norm
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.llama import llama_layer
from services.worker.engine.config.families.names import LLAMA
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.model import ModelConfig


def _arcee(fields: JsonFields) -> ModelConfig:
    fields = fields.with_defaults(hidden_act="relu2")
    shape, norm = read_shape(fields, positions=4096), rms_norm(fields, 1e-5)
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    layer = llama_layer(fields, shape, norm, qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)
    layer = replace(layer, mlp=replace(layer.dense_mlp, gated=False))
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


FAMILIES = {"ArceeForCausalLM": Family(_arcee, LLAMA)}
