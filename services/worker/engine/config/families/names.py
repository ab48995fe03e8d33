"""Names of tensors that families share; each family changes what differs."""

from services.worker.engine.checkpoint.names.file_names import FileNames, TensorLocation

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
# of latent attention: what makes each head's keys and values
HEADS_KV = ("self_attn.k_b_proj.{}", "self_attn.v_b_proj.{}")
EXPERT_GATE_UP = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")

_SAME = (
    *(
        "model.embed_tokens",
        "model.norm",
        "lm_head",
        "self_attn.o_proj",
        "self_attn.q_norm",
        "self_attn.k_norm",
    ),
    *(*QKV, *GATE_UP, "mlp.down_proj", "mlp.experts.{}.down_proj", *EXPERT_GATE_UP),
    *("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.sinks"),
)

LLAMA = FileNames(
    modules={
        **{name: (TensorLocation(name),) for name in _SAME},
        "input_norm": (TensorLocation("input_layernorm"),),
        "mlp_norm": (TensorLocation("post_attention_layernorm"),),
    }
)

# after attention and after the MLP, with the norms before them (Gemma 2) or without (OLMo 2)
BETWEEN_NORMS = LLAMA.with_locations(
    {
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    }
)


def fused(module: str, parts: tuple[str, ...], *, by_kv_head: bool = False) -> dict[str, TensorLocation]:
    """The names of modules whose rows are one matrix in the files."""
    return {part: TensorLocation(module, parts, by_kv_head=by_kv_head) for part in parts}


def stacked_experts(prefix: str, gate_up: str, down: str, suffix: str = "") -> dict[str, TensorLocation]:
    """The names of experts that are one tensor of three dimensions in the files."""
    suffixes = (suffix, f"{suffix}_bias")
    return {
        **{
            part: TensorLocation(f"{prefix}.{gate_up}", EXPERT_GATE_UP, stacked=True, suffixes=suffixes)
            for part in EXPERT_GATE_UP
        },
        "mlp.experts.{}.down_proj": TensorLocation(f"{prefix}.{down}", stacked=True, suffixes=suffixes),
    }


# each expert by itself, or all in one as transformers 5 has them in memory
EXPERTS = LLAMA.with_locations(
    {
        "mlp.router": "mlp.gate",
        **{
            name: (TensorLocation(name), location)
            for name, location in stacked_experts("mlp.experts", "gate_up_proj", "down_proj").items()
        },
    }
)

# beside them one MLP for all tokens, and a vector that is added to the scores for the choice (DeepSeek-V3)
SHARED_EXPERTS = EXPERTS.with_locations(
    {
        **{
            f"mlp.shared.{part}": f"mlp.shared_experts.{part}"
            for part in ("gate_proj", "up_proj", "down_proj")
        },
        "mlp.router.selection_bias": "mlp.gate.e_score_correction_bias",
    }
)
