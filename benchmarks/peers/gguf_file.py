"""Writes a Hugging Face Llama directory as a GGUF file, so that llama.cpp computes the very same weights.

It covers Llama without rope scaling or biases, and writes no tokenizer, because the peer gets token ids. The
`gguf` package writes the file format.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measuring import BenchError

Floats = NDArray[np.float32]
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(model: Path, target: Path) -> None:
    """Convert a model to a file of fp32 numbers.

    Args:
        model: Directory in Hugging Face format.
        target: The file to write.

    Raises:
        BenchError: `gguf` is not installed, or the model is of a kind that is not converted here.
    """
    try:
        gguf: Any = import_module("gguf")  # of the optional extra `peers`
    except ImportError:
        raise BenchError("the package gguf is not installed; `pip install 'ryzanstein[peers]'`") from None
    config = json.loads((model / "config.json").read_bytes())
    _check(model, config)
    writer = gguf.GGUFWriter(target, "llama")
    _metadata(writer, config)
    for name, shape in _shapes(model, config):
        writer.add_tensor_info(_gguf_name(name), shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in _tensors(model, config):
        writer.write_tensor_data(values)
    writer.close()


def interleave_rotary(rows: Floats, num_heads: int) -> Floats:
    """Reorder the rows of a query or key matrix [heads * head_dim, inputs] for llama.cpp.

    Hugging Face rotates row i of a head with row i + head_dim / 2, llama.cpp's Llama rotates adjacent rows.
    """
    outputs, inputs = rows.shape
    halves = rows.reshape(num_heads, 2, outputs // num_heads // 2, inputs)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(outputs, inputs))


def _check(model: Path, config: dict[str, Any]) -> None:
    where = f"the model {model} is not converted for llama.cpp"
    if config.get("architectures") != ["LlamaForCausalLM"]:
        raise BenchError(f"{where}: only LlamaForCausalLM is, config.json says {config.get('architectures')}")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise BenchError(f"{where}: its rope scaling is not covered")
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise BenchError(f"{where}: it has biases")


def _metadata(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    parameters = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config.get("max_position_embeddings", 2048))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(parameters.get("rope_theta", config.get("rope_theta", 10000.0))))
    writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", 1e-6)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    _, _, layer, inner = stem.split(".", 3)  # model.layers.N.what
    return f"blk.{layer}.{_LAYER_NAMES[inner]}.weight"


def _names(config: dict[str, Any]) -> Iterator[str]:
    yield "model.embed_tokens.weight"
    for layer in range(config["num_hidden_layers"]):
        for inner in _LAYER_NAMES:
            yield f"model.layers.{layer}.{inner}.weight"
    yield "model.norm.weight"
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight"


def _open(model: Path, name: str, files: dict[str, Any]) -> Any:
    """The opened file that holds a tensor."""
    from safetensors import safe_open  # noqa: PLC0415

    index = model / "model.safetensors.index.json"
    if "" not in files:
        files[""] = json.loads(index.read_bytes())["weight_map"] if index.exists() else {}
    file = files[""].get(name, "model.safetensors")
    if file not in files:
        files[file] = safe_open(model / file, framework="pt")
    return files[file]


def _shapes(model: Path, config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    files: dict[str, Any] = {}
    for name in _names(config):
        yield name, tuple(_open(model, name, files).get_slice(name).get_shape())


def _tensors(model: Path, config: dict[str, Any]) -> Iterator[Floats]:
    heads = config["num_attention_heads"]
    rotated = {"q_proj": heads, "k_proj": config.get("num_key_value_heads") or heads}
    files: dict[str, Any] = {}
    for name in _names(config):
        values = _open(model, name, files).get_tensor(name).float().numpy()
        kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
        yield interleave_rotary(values, rotated[kind]) if kind in rotated else values
