"""Adapters of many families give what PEFT gives, over ranks and in mixed batches.

`RYZ_CHAOS=full` tries all ranks of adapters with each family and number of ranks; otherwise they rotate.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.engine.config.read_config import read_config
from tests.kits.adapters.comparisons import (
    RANKS,
    TARGETS,
    adapter_files,
    check_mixed_adapters,
    check_same_bits,
)
from tests.kits.engine.rank_threads import plain_compute
from tests.kits.families.comparisons import recorded_compute, tiled_compute
from tests.kits.families.gguf_files import write_family_gguf
from tests.kits.families.models import family_model

# the bases of GGUF files, by family
GGUF = {"llama": "llama", "gemma2": "gemma2", "phi3": "phi3", "gpt2": "gpt2", "falcon, new": "falcon"}
FULL = os.environ.get("RYZ_CHAOS") == "full"
ROTATED = [(name, RANKS[at % 4], 1 + (at // 2) % 2) for at, name in enumerate(TARGETS)]
EVERYTHING = [(name, rank, world) for name in TARGETS for rank in RANKS for world in (1, 2)]


@pytest.mark.parametrize(("family", "rank", "world"), EVERYTHING if FULL else ROTATED)
def test_logits_equal_those_of_peft(family: str, rank: int, world: int) -> None:
    check_mixed_adapters(family, rank, world, tiled_compute)


@pytest.mark.parametrize("family", list(TARGETS) if FULL else ["llama", "phi3"])
def test_untiled_steps_equal_peft(family: str) -> None:
    check_mixed_adapters(family, 16, 2, plain_compute)


def test_recorded_steps_are_not_replayed_with_adapters() -> None:
    check_mixed_adapters("llama", 16, 1, recorded_compute)


@pytest.mark.parametrize("family", list(GGUF))
def test_adapters_of_a_directory_fit_its_gguf_file(family: str, tmp_path: Path) -> None:
    directory = family_model(family).directory
    path = write_family_gguf(directory, tmp_path / "m.gguf", GGUF[family])
    source = adapter_files(family, 16)["a"]
    wanted = read_adapter(source, BaseModel.of(directory, read_config(directory)))
    found = read_adapter(source, BaseModel.of(path, read_config(path)))
    assert found.fingerprint == wanted.fingerprint
    assert found.matrices.keys() == wanted.matrices.keys()
    for key, matrices in wanted.matrices.items():
        for one, other in zip(found.matrices[key], matrices, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("family", "rank", "world"),
    EVERYTHING if FULL else [("llama", 4, 1), ("llama", 64, 2), ("gpt2", 16, 2)],
)
def test_bits_do_not_depend_on_who_shares_the_batch(family: str, rank: int, world: int) -> None:
    check_same_bits(family, rank, world, tiled_compute)
