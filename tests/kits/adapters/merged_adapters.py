"""Random adapters, and models with an adapter's matrices added to their own, which compute the same."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.checkpoint.names.canonical import canonical_tensors
from services.worker.engine.config.read_config import read_config

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def random_adapter(
    model: Path, rank: int, seed: int, targets: Sequence[str] = ALL, *, mixed: bool = False
) -> AdapterWeights:
    """An adapter for a group of one rank.

    Args:
        mixed: Matrices have other ranks than `rank`, too, and every fifth one has none.
    """
    draw, layers, head = torch.Generator().manual_seed(seed), dict[tuple[int, str], LowRank](), None
    tensors = [one for one in canonical_tensors(read_config(model)) if one.suffix == "weight"]
    for number, one in enumerate(one for one in tensors if one.module.rpartition(".")[2] in targets):
        if mixed and number % 5 == 4:
            continue
        r, (outputs, inputs) = 1 + (rank + 3 * number) % (2 * rank) if mixed else rank, one.shape
        pair = LowRank(
            down=torch.randn(r, inputs, generator=draw) / inputs**0.5,
            up=torch.randn(outputs, r, generator=draw) * 0.3 / r**0.5,
        )
        if one.layer < 0:
            head = pair
        else:
            layers[one.layer, one.module] = pair
    return AdapterWeights(layers, head)


def merge(model: Path, adapter: AdapterWeights, directory: Path) -> Path:
    """Writes a Llama with the adapter's products added to its matrices."""
    shutil.copytree(model, directory, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    for (layer, module), pair in adapter.layers.items():
        tensors[f"model.layers.{layer}.{module}.weight"] += pair.up @ pair.down
    if adapter.head is not None:
        tensors["lm_head.weight"] += adapter.head.up @ adapter.head.down
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
