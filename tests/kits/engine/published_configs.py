"""Fields of config.json as well-known models publish them."""

from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "torch_dtype": "float16",
}


QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "max_window_layers": 2,
    "use_sliding_window": False,
}


QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "head_dim": 128,
    "attention_bias": False,
    "tie_word_embeddings": True,
}


YARN_SCALING = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
