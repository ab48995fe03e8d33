"""GPT-2, GPT-NeoX, Falcon, MPT: layer norms, MLPs without a gate, fused projections, names of their own."""

from dataclasses import replace
from typing import Any

from services.worker.engine.checkpoint.names.file_names import FileNames, TensorLocation
from services.worker.engine.config.families.decoder import (
    activation,
    decoder,
    inner_size,
    layer_norm,
    read_shape,
)
from services.worker.engine.config.families.family import Family
from services.worker.engine.config.families.names import LLAMA, QKV, fused
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import AttentionConfig, LayerConfig, MlpConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeDefaults, read_rope


def _gpt2(fields: JsonFields) -> ModelConfig:
    """Positions are learned; matrices are stored as [in, out]."""
    fields = fields.renamed(
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
    )
    fields.ignore("reorder_and_upcast_attn", "n_ctx")
    shape = read_shape(fields, positions=1024, own_head_dim=False, grouped=False)
    norm = layer_norm(fields, "layer_norm_epsilon")
    scale = shape.head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    attention = AttentionConfig(scale=scale, rope=None, qkv_bias=True, output_bias=True)
    mlp = MlpConfig(
        inner=inner_size(fields, 4 * shape.hidden, "n_inner"),
        activation=activation(fields, "gelu_new", "activation_function"),
        gated=False,
        bias=True,
        down_bias=True,
    )
    layer = LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm)
    layers = [layer] * shape.layers
    if fields.flag("scale_attn_by_inverse_layer_idx"):
        layers = [
            replace(layer, attention=replace(attention, scale=scale / (index + 1)))
            for index in range(shape.layers)
        ]
    return decoder(fields, shape, layers, final_norm=norm, tied=True, learned_positions=shape.positions)


def _gpt_neox(fields: JsonFields) -> ModelConfig:
    shape = read_shape(fields, positions=2048, own_head_dim=False, grouped=False)
    norm, bias = layer_norm(fields), fields.flag("attention_bias", True)
    rope = RopeDefaults(part=0.25, theta_name="rotary_emb_base", part_name="rotary_pct")
    attention = AttentionConfig(
        scale=shape.head_dim**-0.5,
        rope=read_rope(fields, shape.head_dim, shape.positions, rope),
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = MlpConfig(
        inner=inner_size(fields),
        activation=activation(fields, "gelu"),
        gated=False,
        bias=True,
        down_bias=True,
    )
    layer = LayerConfig(
        attention=attention,
        mlp=mlp,
        input_norm=norm,
        mlp_norm=norm,
        parallel=fields.flag("use_parallel_residual", True),
    )
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm)


def _falcon(fields: JsonFields) -> ModelConfig:
    """Falcon 7B, 40B and later (new_decoder_architecture), and RW (ALiBi)."""
    fields = fields.renamed(num_key_value_heads="num_kv_heads")
    new, alibi = fields.flag("new_decoder_architecture"), fields.flag("alibi")
    multi_query, parallel = fields.flag("multi_query", True), fields.flag("parallel_attn", True)
    if not new:
        fields.ignore("num_kv_heads")
    shape = read_shape(fields, positions=2048, own_head_dim=False, grouped=new)
    if multi_query and not new:
        shape = replace(shape, kv_heads=1)
    if new:
        fields.require("parallel_attn", True)
    fields.require("apply_residual_connection_post_layernorm", False)
    norm, bias = layer_norm(fields, "layer_norm_epsilon"), fields.flag("bias")
    norms = fields.integer("num_ln_in_parallel_attn", 2 if new else 1, most=2)
    if norms == 2 and not new and parallel:
        raise fields.error("num_ln_in_parallel_attn", "1 or absent without new_decoder_architecture")
    scale = shape.head_dim**-0.5
    if alibi:
        fields.ignore("rope_theta", "rope_scaling", "rope_parameters")
    attention = AttentionConfig(
        scale=scale,
        rope=None if alibi else read_rope(fields, shape.head_dim, shape.positions),
        alibi=alibi,
        alibi_scale=scale,
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = MlpConfig(
        inner=inner_size(fields, 4 * shape.hidden, "ffn_hidden_size"),
        activation=activation(fields, "gelu", "activation"),
        gated=False,
        bias=bias,
        down_bias=bias,
    )
    mlp_norm = norm if (norms == 2 and new) or not parallel else None
    layer = LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=mlp_norm, parallel=parallel)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm, tied=True)


def _mpt(fields: JsonFields) -> ModelConfig:
    fields = fields.renamed(
        hidden_size="d_model",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        max_position_embeddings="max_seq_len",
    )
    fields.ignore("init_config")
    _require(fields, _MPT)
    attention_fields = fields.table("attn_config")
    _require(attention_fields, _MPT_ATTENTION)
    attention_fields.ignore("attn_impl", "attn_pdrop", "model_type")
    shape = read_shape(fields, positions=2048, own_head_dim=False, grouped=False)
    norm = layer_norm(fields, "layer_norm_epsilon", bias=False)
    attention = AttentionConfig(
        scale=attention_fields.number("softmax_scale", shape.head_dim**-0.5),
        rope=None,
        alibi=True,
        clip_qkv=_clip(attention_fields),
    )
    mlp = MlpConfig(inner=4 * shape.hidden, activation="gelu", gated=False)
    layer = LayerConfig(attention=attention, mlp=mlp, input_norm=norm, mlp_norm=norm)
    return decoder(fields, shape, (layer,) * shape.layers, final_norm=norm, tied=True)


def _clip(fields: JsonFields) -> float:
    return fields.number("clip_qkv") if fields.get("clip_qkv") else 0.0


def _require(fields: JsonFields, values: dict[str, tuple[Any, ...]]) -> None:
    for name, allowed in values.items():
        fields.require(name, *allowed)


# what transformers does not read but other implementations do, with the values on which all agree;
# with ALiBi there are no learned positions, whatever the first one says
_MPT: dict[str, tuple[Any, ...]] = {
    "learned_pos_emb": (True, False),
    "expansion_ratio": (4,),
    "logit_scale": (),
    "no_bias": (True,),
    "embedding_fraction": (1,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
    "verbose": (0, False),
}
_MPT_ATTENTION: dict[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
    "alibi": (True,),
    "alibi_bias_max": (8,),
}


def _conv(module: str, parts: tuple[str, ...] = ()) -> TensorLocation:
    return TensorLocation(module, parts, transposed=True)


_FALCON = FileNames(
    modules={
        **LLAMA.modules,
        "model.embed_tokens": (TensorLocation("word_embeddings"),),
        "model.norm": (TensorLocation("ln_f"),),
        "input_norm": (TensorLocation("input_layernorm"), TensorLocation("ln_attn")),
        "mlp_norm": (TensorLocation("ln_mlp"), TensorLocation("post_attention_layernorm")),
        **{
            part: (location,)
            for part, location in fused("self_attention.query_key_value", QKV, by_kv_head=True).items()
        },
        "self_attn.o_proj": (TensorLocation("self_attention.dense"),),
        "mlp.up_proj": (TensorLocation("mlp.dense_h_to_4h"),),
        "mlp.down_proj": (TensorLocation("mlp.dense_4h_to_h"),),
    },
    layer="h.{}.",
    prefixes=("transformer.", ""),
)

FAMILIES = {
    "GPT2LMHeadModel": Family(
        _gpt2,
        FileNames(
            modules={
                "model.embed_tokens": (TensorLocation("wte"),),
                "model.positions": (TensorLocation("wpe"),),
                "model.norm": (TensorLocation("ln_f"),),
                "lm_head": (TensorLocation("lm_head"),),
                "input_norm": (TensorLocation("ln_1"),),
                "mlp_norm": (TensorLocation("ln_2"),),
                **{part: (_conv("attn.c_attn", QKV),) for part in QKV},
                "self_attn.o_proj": (_conv("attn.c_proj"),),
                "mlp.up_proj": (_conv("mlp.c_fc"),),
                "mlp.down_proj": (_conv("mlp.c_proj"),),
            },
            layer="h.{}.",
            prefixes=("transformer.", ""),
            ignored=(r"\.attn\.(masked_)?bias$",),
        ),
    ),
    "GPTNeoXForCausalLM": Family(
        _gpt_neox,
        replace(
            LLAMA.with_locations(
                {
                    "model.embed_tokens": "embed_in",
                    "model.norm": "final_layer_norm",
                    "lm_head": (TensorLocation("embed_out"), TensorLocation("lm_head")),
                    **fused("attention.query_key_value", QKV, by_kv_head=True),
                    "self_attn.o_proj": "attention.dense",
                    "mlp.up_proj": "mlp.dense_h_to_4h",
                    "mlp.down_proj": "mlp.dense_4h_to_h",
                }
            ),
            layer="layers.{}.",
            prefixes=("gpt_neox.", ""),
            ignored=(r"\.attention\.(masked_)?bias$",),
        ),
    ),
    "FalconForCausalLM": Family(_falcon, _FALCON),
    "MptForCausalLM": Family(
        _mpt,
        replace(
            LLAMA.with_locations(
                {
                    "model.embed_tokens": "wte",
                    "model.norm": "norm_f",
                    "input_norm": "norm_1",
                    "mlp_norm": "norm_2",
                    **fused("attn.Wqkv", QKV),
                    "self_attn.o_proj": "attn.out_proj",
                    "mlp.up_proj": "ffn.up_proj",
                    "mlp.down_proj": "ffn.down_proj",
                }
            ),
            layer="blocks.{}.",
            prefixes=("transformer.", ""),
        ),
    ),
}
