"""Every entry of a part of the table in every way: ranks, plain and compiled, any plans, greedy tokens."""

import pytest

from tests.kits.families.comparisons import (
    check_greedy,
    check_mixed,
    check_random,
    check_same_bits,
    computes_of,
    matrix,
)
from tests.kits.families.models import family_model, served
from tests.kits.families.older_entries import OLDER


@pytest.mark.models
@pytest.mark.parametrize(("name", "world"), matrix(OLDER))
def test_everything_equals_transformers(name: str, world: int) -> None:
    model = family_model(name)
    for compute in computes_of(model):
        check_mixed(model, world, compute)
        check_random(model, world, compute, seed=world)
        check_greedy(model, name, world, compute)


@pytest.mark.models
@pytest.mark.parametrize("name", served(OLDER))
def test_recorded_decodes_equal_transformers(name: str) -> None:
    check_random(family_model(name), 1, "recorded", seed=5)


@pytest.mark.models
@pytest.mark.parametrize("name", served(OLDER))
def test_a_token_has_the_same_bits_in_any_plan(name: str) -> None:
    for world in (1, 2):
        check_same_bits(family_model(name), world, "tiled")
