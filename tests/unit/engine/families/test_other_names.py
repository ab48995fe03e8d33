"""Files that name or lay out the same weights in another way than the first one give the same tensors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from tests.kits.families.models import family_model, save_in_memory_names

IN_MEMORY = (
    "gpt_neox mixtral qwen2_moe qwen3_moe olmoe granitemoe glm4_moe deepseek_v2 deepseek_v3".split()  # noqa: SIM905
)
# published without the name of the whole model before each tensor
WITHOUT_PREFIX = {"gpt2": "transformer.", "falcon": "transformer.", "mpt": "transformer."}


def tensors_of(directory: Path) -> dict[str, Tensor]:
    """All tensors of a model by their canonical names."""
    config = read_config(directory)
    with open_checkpoint(directory) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        return {name: source.read(name) for name in source.tensors}


def check_same(directory: Path, other: Path) -> None:
    wanted, found = tensors_of(directory), tensors_of(other)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert torch.equal(found[name], values), name


@pytest.mark.models
@pytest.mark.parametrize("name", IN_MEMORY)
def test_names_that_transformers_has_in_memory(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    saved = save_in_memory_names(name, tmp_path)
    assert saved.keys() != load_file(model.directory / "model.safetensors").keys()
    check_same(model.directory, tmp_path)


@pytest.mark.models
@pytest.mark.parametrize("name", WITHOUT_PREFIX)
def test_names_without_the_prefix(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    stored = load_file(model.directory / "model.safetensors")
    save_file(
        {tensor.removeprefix(WITHOUT_PREFIX[name]): values for tensor, values in stored.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text((model.directory / "config.json").read_text())
    check_same(model.directory, tmp_path)
