"""Adapters of the demo model that are written by hand, so that anything about them can be wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import save_file

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterError
from services.worker.engine.config.read_config import read_config
from tests.kits.engine.gguf_models import finish

DEMO = Path(__file__).parents[3] / "models" / "demo"
WEIGHTS = "adapter_model.safetensors"
QUERIES = "base_model.model.model.layers.0.self_attn.q_proj"  # a target of the handmade adapters
RANK = 4
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "of another name",
    "r": RANK,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
    "bias": "none",
}
Tensors = dict[str, NDArray[Any]]


def demo_base() -> BaseModel:
    """The demo model."""
    return BaseModel.of(DEMO, read_config(DEMO))


def pair(module: str, outputs: int, inputs: int, rank: int = RANK, seed: int = 1) -> Tensors:
    """Both matrices of a module, as PEFT names them."""
    draw = np.random.default_rng(seed)
    return {
        f"base_model.model.{module}.lora_A.weight": draw.normal(size=(rank, inputs)).astype(np.float32),
        f"base_model.model.{module}.lora_B.weight": draw.normal(size=(outputs, rank)).astype(np.float32),
    }


def demo_tensors() -> Tensors:
    """Of queries in the first layer, and of an MLP in the last one."""
    return pair("model.layers.0.self_attn.q_proj", 256, 192) | pair("model.layers.3.mlp.down_proj", 192, 512)


def write_peft(directory: Path, tensors: Tensors | None = None, **config: Any) -> Path:
    """Writes a PEFT directory; fields of the config that are None are left out."""
    directory.mkdir(exist_ok=True)
    fields = {name: value for name, value in (CONFIG | config).items() if value is not None}
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file(demo_tensors() if tensors is None else tensors, directory / WEIGHTS)
    return directory


def write_gguf_adapter(
    path: Path,
    tensors: Tensors,
    *,
    architecture: str = "llama",
    alpha: float | None = 8.0,
    keys: dict[str, str] | None = None,
) -> Path:
    """Writes a GGUF file with these tensors and the keys of an adapter."""
    writer = GGUFWriter(path, architecture)
    for key, value in ({"general.type": "adapter", "adapter.type": "lora"} | (keys or {})).items():
        writer.add_string(key, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    return finish(writer, path)


def refusal(source: Path, base: BaseModel | None = None) -> str:
    """The sentence that refuses an adapter of the demo model."""
    with pytest.raises(AdapterError) as caught:
        read_adapter(source, base or demo_base())
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 600
    return sentence
