"""Models whose linears are quantized in some form, and what they compute."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.quality.own_logits import OwnLogits
from services.worker.engine.native.build import targets
from services.worker.rank_protocol.run_config import Precision

# a weight and a seed -> its tensors by what follows the module's name, and the values they stand for
Quantize = Callable[[Tensor, int], tuple[dict[str, Tensor], Tensor]]


def write_quantized(
    model: Path, directory: Path, quantize: Quantize, quantization: dict[str, Any]
) -> dict[str, Tensor]:
    """Writes a model with all linears quantized; returns their values by name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for seed, (name, tensor) in enumerate(load_file(model / "model.safetensors").items()):
        if "proj" not in name:
            tensors[name] = tensor
            continue
        parts, values[name] = quantize(tensor, seed)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": each.contiguous() for part, each in parts.items()}
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": quantization}
    (directory / "config.json").write_text(json.dumps(config))
    return values


def write_floats(model: Path, directory: Path, values: dict[str, Tensor]) -> None:
    """Writes a model with some of its tensors replaced."""
    directory.mkdir()
    (directory / "config.json").write_bytes((model / "config.json").read_bytes())
    save_file(load_file(model / "model.safetensors") | values, directory / "model.safetensors")


def logits_of(directory: Path, precision: Precision) -> Tensor:
    """What a model computes for four tokens."""
    source = OwnLogits(directory, precision, 1, sequences=1, length=16)
    source.begin(1)
    found = torch.from_numpy(source.feed([[1, 2, 3, 4]]).copy())
    source.close()
    return found


def require_same_logits(quantized: Path, floats: Path, *, codes_error: float | None) -> None:
    """Checks that a model computes what its values as floats do.

    Args:
        quantized: The model.
        floats: The same with its values as floats.
        codes_error: Most of the relative error of its logits as codes, which kernels multiply with
            activations of 8 bits; None: it has none.
    """
    expected = logits_of(floats, "fp32")
    assert torch.equal(logits_of(quantized, "fp32"), expected)
    if codes_error is not None and targets():
        coded = logits_of(quantized, "codes")
        assert 0 < float((coded - expected).norm() / expected.norm()) < codes_error
