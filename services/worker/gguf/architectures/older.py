"""Falcon and MPT, whose configs have names of their own, and Phi-3 with its lists of factors."""

from typing import Any

import numpy as np

from services.worker.gguf.architectures.base import (
    Config,
    GgufArchitecture,
    has_tensor,
    head_dim,
    layer_norm_eps,
    with_rope,
)
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.rope_keys import FACTORS, read_factors

_ALIBI_BIAS = 8.0  # the only one for which positions are computed


def _falcon(fields: MetadataFields) -> Config:
    new = has_tensor(fields, "attn_norm_2.weight")
    heads, kv_heads = fields.integer("attention.head_count"), fields.integer("attention.head_count_kv", 1)
    config = with_rope(fields) | {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "layer_norm_epsilon": layer_norm_eps(fields),
        "activation": "gelu",
        "new_decoder_architecture": new,
        "multi_query": kv_heads == 1,
        "parallel_attn": True,
        "bias": has_tensor(fields, "attn_qkv.bias"),
        "alibi": False,
        "ffn_hidden_size": fields.integer("feed_forward_length"),
    }
    if new:
        config["num_kv_heads"] = kv_heads
    else:
        fields.require("attention.head_count_kv", (1, heads))
    return config


def _mpt(fields: MetadataFields) -> Config:
    fields.require("attention.value_length", (head_dim(fields),))
    fields.require("attention.max_alibi_bias", (_ALIBI_BIAS,))
    hidden = fields.integer("embedding_length")
    fields.require("feed_forward_length", (4 * hidden,))
    clip = fields.number("attention.clamp_kqv") if fields.has("attention.clamp_kqv") else None
    return {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "layer_norm_epsilon": layer_norm_eps(fields),
        "d_model": hidden,
        "n_layers": fields.integer("block_count"),
        "n_heads": fields.integer("attention.head_count"),
        "max_seq_len": fields.integer("context_length"),
        "attn_config": {"clip_qkv": clip, "alibi": True},
    }


def _phi3(fields: MetadataFields) -> Config:
    """Phi-3 and 4; the factors of its longer context are tensors."""
    rope = with_rope(fields, lists=True)
    config: dict[str, Any] = rope | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "sliding_window": fields.integer("attention.sliding_window", 0, least=0) or None,
    }
    if FACTORS[0] in fields.file.tensors:
        rotated = fields.integer("rope.dimension_count", head_dim(fields))
        original = fields.integer("rope.scaling.original_context_length", fields.integer("context_length"))
        short, long = (read_factors(fields.file.tensors[name], rotated) for name in FACTORS)
        config["original_max_position_embeddings"] = original
        config["rope_scaling"] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        if fields.has("rope.scaling.attn_factor"):
            factor = np.float32(fields.number("rope.scaling.attn_factor"))
            config["rope_scaling"]["attention_factor"] = float(str(factor))
    return config


_DECODER = ("intermediate_size", "num_key_value_heads", "hidden_act", "head_dim")
_NOT_IN_MPT = (
    *_DECODER,
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)

OLDER = {
    "falcon": GgufArchitecture(_falcon, mlp_norm="attn_norm", input_norm="attn_norm_2", without=_DECODER),
    "mpt": GgufArchitecture(_mpt, without=_NOT_IN_MPT),
    "phi3": GgufArchitecture(_phi3, fused_gate=True, without=("head_dim",)),
}
