"""What the models of one stack get of a machine: cores and memory are shared among all of their groups."""

import re
from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as some

from cli.stack.fleet.plan_text import NamedNeeds, describe_plan, refuse_fleet
from cli.stack.memory_needs import (
    KV_TOKENS,
    LEAST_STORE_BYTES,
    STORE_OVERHEAD,
    GivenSizing,
    MachineFacts,
    ModelNeeds,
)
from cli.stack.sizing import (
    DoesNotFit,
    Sizing,
    choose_sizing,
    choose_sizings,
    least_tokens,
    sizings_of,
)
from services.worker.engine.checkpoint.model_size import ModelSize

GIB = 2**30
CONTEXT = 8192


def model_of(num_bytes: int, given: GivenSizing | None = None) -> ModelNeeds:
    """A model whose files have so many bytes in bf16, with the KV of its kind."""
    values = num_bytes // 2
    kv_values = max(512, round(2048 * (num_bytes / GIB) ** 0.75))
    size = ModelSize(values * 9 // 10, values // 10, 10_000, False, 2, kv_values, stored="bf16")
    return ModelNeeds(size, CONTEXT, given or GivenSizing())


SMALL, LARGE = model_of(300 * 10**6), model_of(5 * GIB)
SERVER = MachineFacts(cores=16, free_bytes=200 * GIB, kernels=True, store_bytes=20 * GIB)


def named(*models: ModelNeeds) -> list[NamedNeeds]:
    return [NamedNeeds(f"model-{number}", model) for number, model in enumerate(models)]


def text_of(models: list[ModelNeeds], machine: MachineFacts) -> tuple[list[Sizing], str]:
    sizings = choose_sizings(models, machine)
    return sizings, describe_plan(named(*models), sizings, machine)


def test_where_there_is_room_each_has_two_groups_and_all_share_the_cores() -> None:
    sizings, text = text_of([SMALL, LARGE], SERVER)
    assert [(one.groups, one.tensor_parallel, one.threads) for one in sizings] == [(2, 1, 4), (2, 1, 4)]
    assert {one.kv_cache_tokens for one in sizings} == {KV_TOKENS}
    lines = text.splitlines()
    assert lines[0].startswith("2 models on 16 cores, 200.0 GiB free: at most ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["model-0", "model-1"], "nothing was given up"


def test_the_last_model_gives_up_its_second_group_first_where_cores_are_short() -> None:
    counts = {}
    for cores in (2, 3, 4, 5, 6):
        sizings, text = text_of([SMALL, SMALL, SMALL], replace(SERVER, cores=cores))
        counts[cores] = [one.groups for one in sizings]
        ones = [f"model-{n}" for n in range(3) if counts[cores][n] == 1]
        assert re.findall(r"^(model-\d): one group only, since \d cores have", text, re.M) == ones
    assert counts == {2: [1, 1, 1], 3: [1, 1, 1], 4: [2, 1, 1], 5: [2, 2, 1], 6: [2, 2, 2]}
    asked = model_of(300 * 10**6, GivenSizing(groups=2))
    sizings, text = text_of([SMALL, asked], replace(SERVER, cores=2))
    assert [one.groups for one in sizings] == [1, 2]
    assert "model-1: one group only" not in text
    alone = choose_sizing(SMALL.size, CONTEXT, replace(SERVER, cores=1), GivenSizing())
    assert alone.groups == 2, "one model has two groups also on one core"


def test_the_largest_gives_up_its_second_group_where_memory_is_short() -> None:
    machine = replace(SERVER, free_bytes=12 * GIB, store_bytes=0)
    sizings, text = text_of([LARGE, SMALL], machine)
    assert [one.groups for one in sizings] == [1, 2]
    more = re.search(r"model-0: one group only, since two do not fit.*: ([\d.]+) GiB more free memory", text)
    assert more
    assert "model-1: one group" not in text
    enough = replace(machine, free_bytes=machine.free_bytes + int((float(more[1]) + 0.1) * GIB / 0.95))
    assert choose_sizings([LARGE, SMALL], enough)[0].groups == 2


def test_kv_that_is_given_is_kept_and_the_others_share_what_it_leaves() -> None:
    fixed = model_of(300 * 10**6, GivenSizing(kv_cache_tokens=4096))
    machine = replace(SERVER, free_bytes=14 * GIB, store_bytes=0)
    sizings = choose_sizings([fixed, LARGE], machine)
    assert sizings[0].kv_cache_tokens == 4096
    assert 2048 < sizings[1].kv_cache_tokens < KV_TOKENS
    without = choose_sizings([model_of(300 * 10**6), LARGE], machine)
    assert without[1].kv_cache_tokens < sizings[1].kv_cache_tokens


def test_models_that_fit_only_alone_are_refused_with_figures_and_remedies() -> None:
    machine = replace(SERVER, free_bytes=11 * GIB, store_bytes=4 * GIB)
    for model in (LARGE, model_of(6 * GIB)):
        choose_sizing(model.size, CONTEXT, machine, model.given)
    both = [LARGE, model_of(6 * GIB)]
    with pytest.raises(DoesNotFit):
        choose_sizings(both, machine)
    message = refuse_fleet(named(*both), machine)
    assert message.startswith(
        "The models do not fit beside each other into the memory that is free. Together "
    )
    assert re.search(r"model-0 [\d.]+ GiB \(1 group with 5\.\d GiB of weights, \d+ MiB of KV and", message)
    assert '`precision = "int8"`' in message
    assert "leaving out model-0" in message
    more = re.search(r"([\d.]+) GiB more free memory", message)
    assert more
    choose_sizings(
        both, replace(machine, free_bytes=machine.free_bytes + int((float(more[1]) + 0.1) * GIB / 0.95))
    )
    wide = [model_of(300 * 10**6, GivenSizing(kv_cache_tokens=10**6, groups=4)), LARGE]
    message = refuse_fleet(named(*wide), machine)
    assert "fewer `kv_cache_tokens`" in message
    assert "`groups = 1` for each" in message


GIVEN = some.builds(
    GivenSizing,
    groups=some.sampled_from([0, 0, 1, 2, 3]),
    tensor_parallel=some.sampled_from([0, 1, 2]),
    threads=some.sampled_from([0, 0, 3]),
    kv_cache_tokens=some.sampled_from([0, 0, 0, 512, 20_000]),
)
NEEDS = some.builds(
    model_of,
    some.floats(7, 10.5).map(lambda exponent: int(10**exponent)),
    GIVEN,
)
MACHINES = some.builds(
    MachineFacts,
    cores=some.sampled_from([1, 2, 4, 16, 64]),
    free_bytes=some.floats(9, 11.5).map(lambda exponent: int(10**exponent)),
    kernels=some.booleans(),
    store_bytes=some.sampled_from([0, GIB, 20 * GIB]),
)


@settings(max_examples=300, deadline=None)
@drawn(some.lists(NEEDS, min_size=1, max_size=4), MACHINES)
def test_all_may_grow_to_their_bounds_whatever_is_served_together(
    models: list[ModelNeeds], machine: MachineFacts
) -> None:
    """No rank is killed for want of memory, what was given is kept, and nothing is given up that fits."""
    try:
        sizings = choose_sizings(models, machine)
    except DoesNotFit:
        counts = [model.given.groups or 1 for model in models]
        assert sizings_of(models, machine, counts) is None
        assert " more free memory" in refuse_fleet(named(*models), machine)
        return
    needed = sum(one.needed_bytes for one in sizings)
    assert needed + sizings[0].store_bytes * STORE_OVERHEAD <= machine.room_bytes + 1
    assert len({one.store_bytes for one in sizings}) == 1
    assert min(machine.store_bytes, LEAST_STORE_BYTES) <= sizings[0].store_bytes <= machine.store_bytes
    for model, one in zip(models, sizings, strict=True):
        assert model.given.groups in {0, one.groups}
        assert model.given.threads in {0, one.threads}
        assert model.given.kv_cache_tokens in {0, one.kv_cache_tokens}
        assert one.kv_cache_tokens >= least_tokens(CONTEXT, model.given)
        assert one.threads >= 1
    if not any(model.given.threads for model in models):
        ranks = sum(one.groups * one.tensor_parallel for one in sizings)
        assert sizings[0].threads == max(1, machine.cores // ranks)
    for number, model in enumerate(models):
        if sizings[number].groups == 1 and not model.given.groups and len(models) == 1:
            assert sizings_of(models, machine, [2]) is None
    assert describe_plan(named(*models), sizings, machine)
