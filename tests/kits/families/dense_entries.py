"""Architectures with dense feed-forward layers, by a name that begins with the model type."""

from typing import Any

from tests.kits.families.entries import COMMON, GROUPED, SLIDING, WINDOW, FamilyEntry, rope

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * pair for pair in range(8)],
    "long_factor": [1.0 + 0.6 * pair for pair in range(8)],
}
PER_TYPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
}

DENSE: dict[str, FamilyEntry] = {
    "llama": FamilyEntry(
        architecture="LlamaForCausalLM",
        model_type="llama",
        fields=GROUPED | {"attention_bias": True, "mlp_bias": True},
    ),
    "mistral": FamilyEntry(
        architecture="MistralForCausalLM",
        model_type="mistral",
        fields=GROUPED | {"sliding_window": WINDOW},
    ),
    "qwen2": FamilyEntry(
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        fields=COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": FamilyEntry(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        fields=GROUPED | {"tie_word_embeddings": True},
    ),
    "gemma": FamilyEntry(
        architecture="GemmaForCausalLM",
        model_type="gemma",
        fields=GROUPED | {"tie_word_embeddings": True},
    ),
    "gemma2": FamilyEntry(
        architecture="Gemma2ForCausalLM",
        model_type="gemma2",
        fields=GROUPED
        | {
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
            # low enough to matter for models as small as these
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": FamilyEntry(
        architecture="Gemma3ForCausalLM",
        model_type="gemma3_text",
        fields=GROUPED
        | {
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
            "rope_parameters": PER_TYPE,
        },
    ),
    "phi": FamilyEntry(
        architecture="PhiForCausalLM",
        model_type="phi",
        fields=COMMON | rope(partial_rotary_factor=0.5),
    ),
    "phi3": FamilyEntry(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        fields=COMMON | {"sliding_window": WINDOW, "num_attention_heads": 8, "hidden_size": 128},
    ),
    "phi3, long": FamilyEntry(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        fields=COMMON | {"original_max_position_embeddings": 32} | rope(**LONGROPE),
    ),
    "phi3, partial": FamilyEntry(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        fields=COMMON | rope(partial_rotary_factor=0.75),
    ),
    "granite": FamilyEntry(
        architecture="GraniteForCausalLM",
        model_type="granite",
        fields=COMMON
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.2,
        },
    ),
    "smollm3": FamilyEntry(
        architecture="SmolLM3ForCausalLM",
        model_type="smollm3",
        fields=COMMON | {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True},
    ),
    "olmo2": FamilyEntry(architecture="Olmo2ForCausalLM", model_type="olmo2", fields=COMMON),
    "olmo2, two KV heads": FamilyEntry(
        architecture="Olmo2ForCausalLM",
        model_type="olmo2",
        fields=COMMON | {"num_attention_heads": 8, "num_key_value_heads": 2},
        worlds=(1, 4),
    ),
    "olmo3": FamilyEntry(
        architecture="Olmo3ForCausalLM",
        model_type="olmo3",
        fields=COMMON | {"sliding_window": WINDOW, "layer_types": SLIDING},
    ),
    "stablelm": FamilyEntry(
        architecture="StableLmForCausalLM",
        model_type="stablelm",
        fields=COMMON | {"use_qkv_bias": True} | rope(partial_rotary_factor=0.25),
    ),
    "stablelm, parallel": FamilyEntry(
        architecture="StableLmForCausalLM",
        model_type="stablelm",
        fields=COMMON
        | {"qk_layernorm": True, "use_parallel_residual": True}
        | rope(partial_rotary_factor=0.5),
    ),
    "starcoder2": FamilyEntry(
        architecture="Starcoder2ForCausalLM",
        model_type="starcoder2",
        fields=COMMON | {"sliding_window": WINDOW, "tie_word_embeddings": True},
    ),
    "cohere": FamilyEntry(
        architecture="CohereForCausalLM",
        model_type="cohere",
        fields=COMMON | {"logit_scale": 0.25, "use_qk_norm": True, "tie_word_embeddings": True},
    ),
    "cohere2": FamilyEntry(
        architecture="Cohere2ForCausalLM",
        model_type="cohere2",
        fields=GROUPED
        | {
            "logit_scale": 0.25,
            "tie_word_embeddings": True,
            "sliding_window": WINDOW,
            "layer_types": SLIDING,
        },
    ),
    "glm": FamilyEntry(
        architecture="GlmForCausalLM",
        model_type="glm",
        fields=GROUPED | {"attention_bias": True} | rope(partial_rotary_factor=0.5),
    ),
    "glm4": FamilyEntry(
        architecture="Glm4ForCausalLM",
        model_type="glm4",
        fields=GROUPED | {"attention_bias": True} | rope(partial_rotary_factor=0.5),
    ),
    "nemotron": FamilyEntry(
        architecture="NemotronForCausalLM",
        model_type="nemotron",
        fields=GROUPED | rope(partial_rotary_factor=0.5),
    ),
    "exaone4": FamilyEntry(
        architecture="Exaone4ForCausalLM",
        model_type="exaone4",
        fields=COMMON | {"sliding_window": WINDOW, "layer_types": SLIDING},
    ),
    "arcee": FamilyEntry(
        architecture="ArceeForCausalLM",
        model_type="arcee",
        fields=GROUPED | {"attention_bias": True, "mlp_bias": True},
    ),
    "bitnet": FamilyEntry(architecture="BitNetForCausalLM", model_type="bitnet", fields=COMMON),
}
