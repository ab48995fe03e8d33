"""Architectures whose configs have names of their own: GPT-2 and its time."""

from typing import Any

from tests.kits.families.entries import COMMON, VOCABULARY, FamilyEntry, rope

TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
FALCON: dict[str, Any] = TOKENS | {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_hidden_size": 112,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
MPT: dict[str, Any] = TOKENS | {
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 3,
    "max_seq_len": 512,
    "initializer_range": 0.15,
}

OLDER: dict[str, FamilyEntry] = {
    "gpt2": FamilyEntry(
        architecture="GPT2LMHeadModel",
        model_type="gpt2",
        fields=TOKENS
        | {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "initializer_range": 0.15},
    ),
    "gpt_neox": FamilyEntry(
        architecture="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        fields={key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
        | rope(partial_rotary_factor=0.25),
    ),
    "gpt_neox, in sequence": FamilyEntry(
        architecture="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        fields={key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
        | {"use_parallel_residual": False, "attention_bias": False}
        | rope(partial_rotary_factor=0.5),
    ),
    "falcon": FamilyEntry(
        architecture="FalconForCausalLM",
        model_type="falcon",
        fields=FALCON,
        worlds=(1, 2, 4),  # one KV head
    ),
    "falcon, new": FamilyEntry(
        architecture="FalconForCausalLM",
        model_type="falcon",
        fields=FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
        worlds=(1, 2, 4),
    ),
    "falcon, alibi": FamilyEntry(
        architecture="FalconForCausalLM",
        model_type="falcon",
        fields=FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "mpt": FamilyEntry(architecture="MptForCausalLM", model_type="mpt", fields=MPT),
    "mpt, clipped": FamilyEntry(
        architecture="MptForCausalLM",
        model_type="mpt",
        fields=MPT | {"d_model": 72, "n_heads": 6, "attn_config": {"clip_qkv": 1.0}},
    ),
}
