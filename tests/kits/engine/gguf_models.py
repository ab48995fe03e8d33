"""Writes a model directory as a GGUF file, as llama.cpp's converter does, for the tests of what reads it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map, quants
from numpy.typing import NDArray
from safetensors.torch import load_file

ARCHITECTURES = {
    "LlamaForCausalLM": ("llama", MODEL_ARCH.LLAMA),
    "MistralForCausalLM": ("llama", MODEL_ARCH.LLAMA),
    "Qwen2ForCausalLM": ("qwen2", MODEL_ARCH.QWEN2),
    "Qwen3ForCausalLM": ("qwen3", MODEL_ARCH.QWEN3),
}


def write_gguf(model: Path, target: Path, kind: str = "F32", part_tensors: int = 0) -> Path:
    """Writes the file without a tokenizer.

    Args:
        model: A directory in Hugging Face format.
        target: The file.
        kind: Of the matrices; all else is F32.
        part_tensors: Most tensors of a part; 0: one file.

    Returns:
        `target`, or the first part.
    """
    config = json.loads((model / "config.json").read_text())
    architecture, table = ARCHITECTURES[config["architectures"][0]]
    names = get_tensor_name_map(table, config["num_hidden_layers"])
    writer = GGUFWriter(target, architecture, split_max_tensors=part_tensors)
    _add_metadata(writer, config)
    rotated = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(model / "model.safetensors").items():
        values: NDArray[np.float32] = tensor.float().numpy()
        module, _, suffix = name.rpartition(".")
        part = module.rpartition(".")[2]
        if architecture == "llama" and part in rotated:
            values = interleave(values, rotated[part])
        stored = names.get_name(module)
        assert stored is not None
        raw_type = GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        writer.add_tensor(f"{stored}.{suffix}", quants.quantize(values, raw_type), raw_dtype=raw_type)
    if _rope(config).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(_rope(config), config["head_dim"]))
    finish(writer, target)
    return target if target.exists() else min(target.parent.glob(f"{target.stem}-00001-of-*.gguf"))


def finish(writer: GGUFWriter, target: Path) -> Path:
    """Writes what a writer has been given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def interleave(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Puts the rows that llama.cpp's Llama rotates together next to each other: the row of the other half."""
    order = []
    head_dim = len(rows) // num_heads
    for head in range(num_heads):
        for index in range(head_dim // 2):
            order += [head * head_dim + index, head * head_dim + head_dim // 2 + index]
    return np.ascontiguousarray(rows[order])


def llama3_divisors(rope: Mapping[str, Any], head_dim: int) -> NDArray[np.float32]:
    """What the converter stores of Llama 3.1's scaling, one number for each frequency."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    length, divisors = rope["original_max_position_embeddings"], []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
        if wavelength < length / high:
            divisors.append(1.0)
        elif wavelength > length / low:
            divisors.append(rope["factor"])
        else:
            smooth = (length / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    parameters = config.get("rope_parameters") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), "rope_type": "default"} | parameters


def _add_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = _rope(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if config["architectures"] == ["MistralForCausalLM"] and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
