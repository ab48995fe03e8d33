"""Models of the table as GGUF files have them: by the architecture, and variants of it."""

from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"


def kinds(count: int, every: int) -> list[str]:
    """Kinds of layers as llama.cpp knows them: each `every`th one sees everything."""
    return [FULL if (index + 1) % every == 0 else SLIDING for index in range(count)]


# architecture of GGUF -> the entry, and what is changed in it to be like the published models
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16, "layer_types": kinds(3, 2)}),
    "gemma3": (
        "gemma3",
        {
            "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7,
            "layer_types": kinds(7, 6),
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
                FULL: {"rope_type": "default", "rope_theta": 50000.0},
            },
        },
    ),
    "granite": ("granite", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}),
    "olmo2": ("olmo2", {}),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "glm4": ("glm4", {}),
    "chatglm": ("glm", {}),
    "command-r": ("cohere", {}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "phi2": ("phi", {}),
    "nemotron": ("nemotron", {}),
    "gptneox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {}),
    "falcon": ("falcon", {}),
    "mpt": ("mpt, clipped", {}),
    "phi3": ("phi3", {}),
    "qwen2moe": ("qwen2_moe", {"mlp_only_layers": []}),
    "qwen3moe": ("qwen3_moe", {"mlp_only_layers": []}),
    "olmoe": ("olmoe", {}),
    "granitemoe": ("granitemoe", {}),
    "gpt-oss": (
        "gpt_oss",
        {"layer_types": kinds(3, 2), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "bitnet": ("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True}),
    "glm4moe": ("glm4_moe", {}),
    "deepseek2": ("deepseek_v2", {}),
}

# name -> architecture of GGUF, entry, changes
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek2, lite": ("deepseek2", "deepseek_v2, lite", {}),
    "deepseek2, joined": ("deepseek2", "deepseek_v3", {}),
    "deepseek2, v3": ("deepseek2", "deepseek_v3", {}),
    "phi3, long": ("phi3", "phi3, long", {}),
    "phi3, partial": ("phi3", "phi3, partial", {}),
    "falcon, new": ("falcon", "falcon, new", {}),
    "mixtral": ("llama", "mixtral", {}),
    "olmo3": ("olmo2", "olmo3", {"num_hidden_layers": 5, "layer_types": kinds(5, 4)}),
    "stablelm, parallel": ("stablelm", "stablelm, parallel", {}),
}
