"""DoRA gives what PEFT gives: over families, ranks and kernels, beside plain LoRA and the base."""

from pathlib import Path

import pytest
import torch

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.engine.adapters.own_share import own_share
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from tests.kits.adapters.comparisons import (
    RANKS,
    TARGETS,
    adapter_files,
    check_mixed_adapters,
    check_same_bits,
)
from tests.kits.engine.rank_threads import native_compute, plain_compute
from tests.kits.families.comparisons import tiled_compute
from tests.kits.families.compiled import FORMS, compiled
from tests.kits.families.gguf_files import write_family_gguf
from tests.kits.families.models import family_model

# the bases of GGUF files, by family
GGUF = {"llama": "llama", "gemma2": "gemma2", "gpt2": "gpt2", "falcon, new": "falcon"}
COMPILED = targets()
needs_kernels = pytest.mark.skipif(not COMPILED, reason="the kernels are for x86-64 with AVX2")
ROTATED = [(name, RANKS[at % 4], 1 + (at // 2) % 2) for at, name in enumerate(TARGETS)]


@pytest.mark.parametrize(("family", "rank", "world"), ROTATED)
def test_logits_equal_those_of_peft(family: str, rank: int, world: int) -> None:
    check_mixed_adapters(family, rank, world, tiled_compute, "DoRA")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "cohere"])  # the last two tie the head
def test_the_head_equals_that_of_peft(family: str) -> None:
    check_mixed_adapters(family, 16, 2, tiled_compute, "DoRA of the head")


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # with and without biases
def test_untiled_steps_equal_peft(family: str) -> None:
    check_mixed_adapters(family, 16, 2, plain_compute, "DoRA")


@needs_kernels
@pytest.mark.parametrize(
    ("family", "rank", "world"), [(name, rank, 3 - world) for name, rank, world in ROTATED]
)
def test_compiled_logits_equal_those_of_peft(family: str, rank: int, world: int) -> None:
    check_mixed_adapters(family, rank, world, native_compute, "DoRA")


@needs_kernels
@pytest.mark.parametrize("world", [1, 2])
def test_the_compiled_head_equals_that_of_peft(world: int) -> None:
    check_mixed_adapters("llama", 16, world, native_compute, "DoRA of the head")
    check_mixed_adapters("gemma2", 16, world, native_compute, "DoRA of the head")


@pytest.mark.parametrize(("family", "world"), [("llama", 1), ("gpt2", 2)])
def test_bits_do_not_depend_on_who_shares_the_batch(family: str, world: int) -> None:
    check_same_bits(family, 16, world, tiled_compute, "DoRA")


@needs_kernels
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("family", "world"), [("llama", 1), ("phi3", 2)])
def test_compiled_bits_do_not_depend_on_who_shares_the_batch(family: str, world: int, form: str) -> None:
    for target in COMPILED:
        check_same_bits(family, 16, world, compiled(FORMS[form], target, threads=2), "DoRA")


@pytest.mark.parametrize("family", list(GGUF))
def test_factors_are_the_same_beside_a_gguf_base(family: str, tmp_path: Path) -> None:
    directory = family_model(family).directory
    path = write_family_gguf(directory, tmp_path / "m.gguf", GGUF[family])
    for kind in ("DoRA", "DoRA of the head"):
        source = adapter_files(family, 16, kind)["a" if kind == "DoRA" else "b"]
        for rank in range(2):
            wanted, found = (_factors(source, model, rank) for model in (directory, path))
            assert found.keys() == wanted.keys()
            for key, factors in wanted.items():
                torch.testing.assert_close(found[key], factors, atol=1e-6, rtol=1e-6)


def _factors(source: Path, model: Path, rank: int) -> dict[tuple[int, str], torch.Tensor]:
    base = BaseModel.of(model, read_config(model))
    share = own_share(read_adapter(source, base), base, rank, 2)
    found = {key: low.factors for key, low in share.layers.items()}
    if share.head is not None:
        found[-1, "head"] = share.head.factors
    return {key: factors for key, factors in found.items() if factors is not None}
