"""A GGUF file holds the model of the directory: the same config in every field, and the same tensors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.config.whole_norms import with_whole_norms
from services.worker.gguf.config import ARCHITECTURES
from tests.kits.families.gguf_files import write_family_gguf
from tests.kits.families.gguf_variants import FILES, VARIANTS
from tests.kits.families.models import ENTRIES, save_model

_ELSEWHERE = {"qwen2", "qwen3"}  # `checkpoint/test_engine_gguf.py`, with all forms of positions


def test_every_architecture_of_gguf_is_in_the_table() -> None:
    assert FILES.keys() | _ELSEWHERE == ARCHITECTURES.keys()


@pytest.mark.parametrize("variant", [*FILES, *VARIANTS])
def test_a_file_is_the_model_of_the_directory(variant: str, tmp_path: Path) -> None:
    architecture, name, changes = VARIANTS.get(variant) or (variant, *FILES[variant])
    entry = ENTRIES[name]
    directory = save_model(replace(entry, fields=entry.fields | changes), tmp_path / "m")
    path = write_family_gguf(directory, tmp_path / "m.gguf", architecture, joined="joined" in variant)
    config, wanted = read_config(path), with_whole_norms(read_config(directory))
    assert config == wanted
    with open_checkpoint(path) as one, open_checkpoint(directory) as other:
        stored, given = (open_source(each, config, SingleRank()) for each in (one, other))
        offset = read_config(directory).final_norm.offset
        for tensor in given.tensors:
            shift = offset if tensor.endswith("norm.weight") else 0.0
            assert torch.equal(stored.read(tensor), given.read(tensor) + shift), tensor


def test_experts_whose_groups_the_file_does_not_tell_are_refused(tmp_path: Path) -> None:
    entry = ENTRIES["deepseek_v3"]
    fields = {"n_routed_experts": 256, "moe_intermediate_size": 4, "n_group": 1, "topk_group": 1}
    directory = save_model(replace(entry, fields=entry.fields | fields), tmp_path / "m")
    path = write_family_gguf(directory, tmp_path / "m.gguf", "deepseek2")
    with pytest.raises(ModelError, match=r"expert_group_count` must be given.*convert the model anew"):
        read_config(path)
