"""What models take that come and go: each as if it were alone, those of the start beside each other."""

from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as some

from cli.stack.fleet.on_demand import (
    DEMAND_KV_TOKENS,
    TooLargeAlone,
    TooManyAtStart,
    plan_on_demand,
)
from cli.stack.memory_needs import STORE_OVERHEAD, GivenSizing, MachineFacts, ModelNeeds, process_bytes
from tests.unit.cli.fleet.test_cli_fleet_sizing import GIB, model_of

MACHINE = MachineFacts(8, 8 * GIB, kernels=True, store_bytes=3 * GIB, packed_bytes=64 * GIB)


def test_models_that_do_not_fit_beside_each_other_are_offered_all_the_same() -> None:
    models = [model_of(3 * GIB), model_of(2 * GIB), model_of(2 * GIB)]
    plan = plan_on_demand(models, [True, False, False], MACHINE)
    first = [needs.first for needs in plan.groups]
    assert sum(first) > plan.budget_bytes >= max(first)
    assert [sizing.groups for sizing in plan.sizings] == [1, 1, 1]
    assert {sizing.threads for sizing in plan.sizings} == {2}  # eight cores for three models
    assert all(0 < sizing.kv_cache_tokens <= DEMAND_KV_TOKENS for sizing in plan.sizings)
    assert plan.budget_bytes + int(plan.store_bytes * STORE_OVERHEAD) <= MACHINE.room_bytes


def test_a_further_group_does_not_count_shared_weights() -> None:
    model = model_of(2 * GIB, GivenSizing(groups=2))
    (needs,) = plan_on_demand([model], [False], MACHINE).groups
    assert 2 * GIB <= needs.first - needs.further < 2.5 * GIB  # with the largest matrix while it is packed
    (copies,) = plan_on_demand([model], [False], replace(MACHINE, packed_bytes=0, free_bytes=16 * GIB)).groups
    assert copies.further == pytest.approx(copies.first, rel=0.15)


def test_a_model_that_does_not_fit_alone_is_named() -> None:
    with pytest.raises(TooLargeAlone) as refused:
        plan_on_demand([model_of(GIB), model_of(9 * GIB)], [False, False], MACHINE)
    assert refused.value.number == 1


def test_models_of_the_start_have_to_fit_beside_each_other() -> None:
    with pytest.raises(TooManyAtStart):
        plan_on_demand([model_of(3 * GIB)] * 2, [True, True], MACHINE)
    plan_on_demand([model_of(3 * GIB)] * 2, [True, False], MACHINE)


def test_fewer_groups_are_offered_where_not_all_fit() -> None:
    plan = plan_on_demand(
        [model_of(3 * GIB, GivenSizing(groups=4))], [False], replace(MACHINE, packed_bytes=0)
    )
    assert plan.sizings[0].groups == 1


@drawn(
    sizes=some.lists(some.integers(10, 6000), min_size=1, max_size=4),
    free=some.integers(1, 32),
    stores=some.integers(0, 12),
    cores=some.integers(1, 64),
    data=some.data(),
)
def test_each_model_fits_alone_and_those_of_the_start_together(
    sizes: list[int], free: int, stores: int, cores: int, data: some.DataObject
) -> None:
    machine = MachineFacts(cores, free * GIB, kernels=True, store_bytes=stores * GIB, packed_bytes=free * GIB)
    models: list[ModelNeeds] = [model_of(size * 2**20) for size in sizes]
    at_start = data.draw(some.lists(some.booleans(), min_size=len(models), max_size=len(models)))
    try:
        plan = plan_on_demand(models, at_start, machine)
    except (TooLargeAlone, TooManyAtStart):
        return
    for model, needs, sizing in zip(models, plan.groups, plan.sizings, strict=True):
        assert process_bytes(model.size) < needs.further <= needs.first
        assert needs.first <= plan.budget_bytes
        assert sizing.threads * len(models) <= max(cores, len(models))
    together = sum(needs.first for needs, loaded in zip(plan.groups, at_start, strict=True) if loaded)
    packing = max(needs.first for needs in plan.groups)  # reading a matrix is counted for one at a time
    assert together <= plan.budget_bytes + packing
