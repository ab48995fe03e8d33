"""Decoders with norms that subtract the mean: Cohere, StableLM, Starcoder 2, Phi-2, Nemotron, GPT-2, NeoX."""

from services.worker.gguf.architectures.base import (
    Config,
    GgufArchitecture,
    every,
    has_tensor,
    head_dim,
    layer_norm_eps,
    shortest,
    with_rope,
)
from services.worker.gguf.metadata_fields import MetadataFields


def _cohere(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["CohereForCausalLM"],
        "model_type": "cohere",
        "layer_norm_eps": layer_norm_eps(fields),
        "logit_scale": shortest(fields.number("logit_scale")),
        "use_qk_norm": has_tensor(fields, "attn_q_norm.weight"),
        "attention_bias": has_tensor(fields, "attn_q.bias"),
    }


def _cohere2(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["Cohere2ForCausalLM"],
        "model_type": "cohere2",
        "layer_norm_eps": layer_norm_eps(fields),
        "logit_scale": shortest(fields.number("logit_scale")),
        "sliding_window": fields.integer("attention.sliding_window"),
        "layer_types": every(fields, 4),
        "attention_bias": has_tensor(fields, "attn_q.bias"),
    }


def _stablelm(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "layer_norm_eps": layer_norm_eps(fields),
        "use_qkv_bias": has_tensor(fields, "attn_q.bias"),
        "qk_layernorm": has_tensor(fields, "attn_q_norm.weight"),
        "use_parallel_residual": fields.flag(
            "use_parallel_residual", not has_tensor(fields, "ffn_norm.weight")
        ),
    }


def _starcoder2(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "norm_epsilon": layer_norm_eps(fields),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": has_tensor(fields, "attn_q.bias"),
        "sliding_window": None,
    }


def _phi2(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "layer_norm_eps": layer_norm_eps(fields),
        "hidden_act": "gelu_new",
        "qk_layernorm": False,
    }


def _nemotron(fields: MetadataFields) -> Config:
    return with_rope(fields) | {
        "architectures": ["NemotronForCausalLM"],
        "model_type": "nemotron",
        "norm_eps": layer_norm_eps(fields),
        "hidden_act": "relu2",
        "attention_bias": has_tensor(fields, "attn_q.bias"),
        "mlp_bias": has_tensor(fields, "ffn_up.bias"),
    }


def _gpt_neox(fields: MetadataFields) -> Config:
    rope = with_rope(fields)
    part, theta = rope.pop("partial_rotary_factor", 1.0), rope.pop("rope_theta")
    return rope | {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "layer_norm_eps": layer_norm_eps(fields),
        "hidden_act": "gelu",
        "rotary_pct": part,
        "rotary_emb_base": theta,
        "use_parallel_residual": fields.flag("use_parallel_residual", True),
        "attention_bias": has_tensor(fields, "attn_qkv.bias"),
    }


def _gpt2(fields: MetadataFields) -> Config:
    fields.require("attention.value_length", (head_dim(fields),))
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "layer_norm_epsilon": layer_norm_eps(fields),
        "activation_function": "gelu_new",
        "n_embd": fields.integer("embedding_length"),
        "n_layer": fields.integer("block_count"),
        "n_head": fields.integer("attention.head_count"),
        "n_positions": fields.integer("context_length"),
        "n_inner": fields.integer("feed_forward_length"),
    }


# its config has names of its own for most of them
_NOT_IN_GPT2 = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "hidden_act",
    "head_dim",
)

LAYER_NORMS = {
    "command-r": GgufArchitecture(_cohere, interleaved_heads=True),
    "cohere2": GgufArchitecture(_cohere2, interleaved_heads=True),
    "stablelm": GgufArchitecture(_stablelm, without=("head_dim",)),
    "starcoder2": GgufArchitecture(_starcoder2),
    "phi2": GgufArchitecture(_phi2),
    "nemotron": GgufArchitecture(_nemotron),
    "gptneox": GgufArchitecture(_gpt_neox, without=("head_dim", "num_key_value_heads")),
    "gpt2": GgufArchitecture(_gpt2, without=_NOT_IN_GPT2),
}
