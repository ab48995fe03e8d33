"""Writes an adapter of random numbers as PEFT does: a directory with a config and matrices."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from services.worker.engine.config.layer import MlpConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config

_UP_SCALE = 0.05  # large enough that greedy answers differ from the base's, small enough that they are text


def make_adapter(directory: Path, model: Path, *, rank: int, seed: int) -> Path:
    """Make an adapter of all linear layers of a model whose layers are Llama's; return the directory.

    Args:
        directory: Is made; files in it are overwritten.
        seed: Adapters of different seeds give different answers.
    """
    config = read_config(model)
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for index in range(config.num_layers):
        for module, (outputs, inputs) in _shapes(config, index).items():
            name = f"base_model.model.model.layers.{index}.{module}"
            down = rng.standard_normal((rank, inputs)) / inputs**0.5
            up = rng.standard_normal((outputs, rank)) * _UP_SCALE / rank**0.5
            tensors[f"{name}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = up.astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    targets = sorted({name.split(".")[-1] for name in _shapes(config, 0)})
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(fields, indent=2))
    return directory


def adapter_bytes(model: Path, rank: int) -> int:
    """Return the memory that such an adapter takes in a group, in fp32."""
    config = read_config(model)
    layers = range(config.num_layers)
    return sum(4 * rank * sum(shape) for index in layers for shape in _shapes(config, index).values())


def _shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each linear of a layer."""
    hidden, mlp = config.hidden_size, config.layers[index].mlp
    if not isinstance(mlp, MlpConfig):
        raise ValueError(f"layer {index} has experts, which have no adapters")
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.up_proj": (mlp.inner, hidden),
        "mlp.down_proj": (hidden, mlp.inner),
    }
    if mlp.gated:
        shapes["mlp.gate_proj"] = (mlp.inner, hidden)
    return shapes
