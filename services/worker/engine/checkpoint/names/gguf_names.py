"""How GGUF files name tensors: by one scheme for all architectures, which few of them depart from."""

from services.worker.engine.checkpoint.names.file_names import FileNames, TensorLocation
from services.worker.gguf.architectures.base import GgufArchitecture

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
HEADS_KV = ("self_attn.k_b_proj.{}", "self_attn.v_b_proj.{}")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")

_MODULES = {
    "model.embed_tokens": "token_embd",
    "model.positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_norm": "attn_norm",
    "post_attention_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.output_norm": "attn_sub_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_norm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj": "attn_kv_a_mqa",
    "self_attn.kv_a_norm": "attn_kv_a_norm",
    "mlp.inner_norm": "ffn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.router.selection_bias": "exp_probs_b.bias",
    "mlp.shared.gate_proj": "ffn_gate_shexp",
    "mlp.shared.up_proj": "ffn_up_shexp",
    "mlp.shared.down_proj": "ffn_down_shexp",
    "mlp.shared_gate": "ffn_gate_inp_shexp",
}
_STACKED = {
    "self_attn.q_norm.{}": "attn_q_norm",
    "self_attn.k_norm.{}": "attn_k_norm",
    "mlp.experts.{}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{}.up_proj": "ffn_up_exps",
    "mlp.experts.{}.down_proj": "ffn_down_exps",
}
_SEPARATE = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}

# what the config has taken up already
_IGNORED = (r"^rope_(freqs|factors_long|factors_short)\.weight$", r"\.attn_rot_embd$")


def gguf_names(architecture: GgufArchitecture) -> FileNames:
    """The names of tensors in the files of an architecture."""
    modules: dict[str, tuple[TensorLocation, ...]] = {
        name: (TensorLocation(stored),) for name, stored in _MODULES.items()
    }
    modules |= {name: (TensorLocation(stored, stacked=True),) for name, stored in _STACKED.items()}
    modules |= {
        name: (TensorLocation(stored), TensorLocation("attn_qkv", _QKV)) for name, stored in _SEPARATE.items()
    }
    modules["mlp_norm"] = (TensorLocation(architecture.mlp_norm),)
    modules["input_norm"] = tuple(
        TensorLocation(name) for name in dict.fromkeys((architecture.input_norm, "attn_norm"))
    )
    modules |= {
        part: (
            TensorLocation(stored, stacked=True, transposed=part == HEADS_KV[0]),
            TensorLocation("attn_kv_b", HEADS_KV, by_item=True),
        )
        for part, stored in zip(HEADS_KV, ("attn_k_b", "attn_v_b"), strict=True)
    }
    if architecture.fused_gate:
        modules |= {name: (TensorLocation("ffn_up", _GATE_UP),) for name in _GATE_UP}
    return FileNames(
        modules=modules,
        layer="blk.{}.",
        interleaved=architecture.interleaved_heads,
        ignored=_IGNORED,
        later_layers=architecture.later_layers,
    )
