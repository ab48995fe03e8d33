"""Writes a trained demo model as a Hugging Face directory for any Llama loader, and reads it back.

Weights are stored in bfloat16; the tied output layer is not stored twice.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from training import bpe
from training.model import DemoModel, TrainingModelConfig


def export_model(model: DemoModel, tokenizer: Tokenizer, output: Path) -> None:
    """Write config, generation config, tokenizer, chat template and weights.

    Args:
        output: Directory, created if missing; files of an earlier export are replaced.
    """
    output.mkdir(parents=True, exist_ok=True)
    ids = bpe.special_ids(tokenizer)
    bos, end = ids[bpe.BOS], ids[bpe.END]
    c = model.config
    _write_json(
        output / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": c.vocab_size,
            "hidden_size": c.hidden_size,
            "intermediate_size": c.intermediate_size,
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": c.num_heads,
            "num_key_value_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "max_position_embeddings": c.max_positions,
            "rope_theta": c.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": c.norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "bos_token_id": bos,
            "eos_token_id": end,
            "pad_token_id": end,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        },
    )
    _write_json(
        output / "generation_config.json",
        {"bos_token_id": bos, "eos_token_id": end, "pad_token_id": end, "do_sample": False},
    )
    _write_json(
        output / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bpe.BOS,
            "eos_token": bpe.END,
            "pad_token": bpe.END,
            "additional_special_tokens": [bpe.SYSTEM, bpe.USER, bpe.ASSISTANT],
            "model_max_length": c.max_positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": bpe.CHAT_TEMPLATE,
        },
    )
    tokenizer.save(str(output / "tokenizer.json"))
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    (output / "model.safetensors").chmod(0o644)  # the library makes it readable by its owner only


def load_model(directory: Path) -> tuple[DemoModel, Tokenizer]:
    """Read an exported directory.

    Args:
        directory: A directory that `export_model` wrote.

    Returns:
        The model in float32 and its tokenizer.
    """
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = TrainingModelConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        max_positions=raw["max_position_embeddings"],
        rope_theta=raw["rope_theta"],
        norm_eps=raw["rms_norm_eps"],
    )
    model = DemoModel(config)
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model, Tokenizer.from_file(str(directory / "tokenizer.json"))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
