"""Each architecture once against transformers, in mixed batches; the whole matrix is in the other files."""

import pytest

from services.worker.engine.config.families.registry import FAMILIES
from tests.kits.families.comparisons import check_mixed, check_same_bits, computes_of
from tests.kits.families.models import ENTRIES, each_once, family_model, served

ONCE = each_once(served(ENTRIES))


def test_every_architecture_that_is_served_is_in_the_table() -> None:
    assert set(FAMILIES) == {ENTRIES[name].architecture for name in ONCE}


@pytest.mark.parametrize(("number", "name"), list(enumerate(ONCE)), ids=ONCE)
def test_logits_equal_transformers(number: int, name: str) -> None:
    model = family_model(name)
    for compute in computes_of(model):
        check_mixed(model, 1 + number % 2, compute)


@pytest.mark.parametrize(("name", "world"), [("deepseek_v3", 2), ("gemma2", 1), ("gpt_oss", 2)])
def test_torch_gives_a_token_the_same_bits_in_any_plan_on_cpus(name: str, world: int) -> None:
    check_mixed(family_model(name), world, "tiled")
    check_same_bits(family_model(name), world, "tiled")
