"""Where the processes of a stack run: reserved cores, NUMA nodes, and ranks that give way by priority."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.stack.fleet.core_sets import CoreSets, assign_cores, describe_cores, num_reserved, with_reserved
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.plan import plan_stack
from cli.stack.probes import Probes
from shared.host.numa_nodes import usable_nodes
from tests.kits.supervisor import options


def model(name: str, **fields: object) -> FoundModel:
    settled = {"groups": 1, "tensor_parallel": 1, "threads": 1, "precision": "fp32", "kv_cache_tokens": 512}
    entry = ModelEntry.model_validate({"source": "x", "name": name, **settled, **fields})
    return FoundModel(entry, None)


def test_without_reservations_every_process_may_run_everywhere() -> None:
    models = [model("one", groups=2), model("two", threads=2)]
    assert assign_cores(models, [(0, 1, 2, 3)]) == CoreSets(((), (), ()), ())
    assert list(describe_cores(models, CoreSets(((), (), ()), ()))) == []


def test_reserved_cores_are_nobody_elses() -> None:
    models = [model("one"), model("two", groups=2, cores=2, threads=2)]
    sets = assign_cores(models, [(0, 1, 2, 3, 5)])
    assert sets == CoreSets(((0,), (3, 5), (1, 2)), (0,))
    assert sets.of_group(3) == (0,), "a group that is added later reserves nothing"
    assert list(describe_cores(models, sets)) == [
        "two: a group has cores of its own: 3, 5.",
        "two: a group has cores of its own: 1, 2.",
    ]


def test_groups_stay_on_one_node_where_they_fit() -> None:
    models = [model("one", groups=2, threads=2), model("wide", tensor_parallel=4, threads=2)]
    sets = assign_cores(models, [(0, 1, 2, 3), (4, 5, 6, 7)])
    assert sets.groups == ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7))
    assert sets.others == ()
    assert list(describe_cores(models, sets))[1] == "one: a group stays on one NUMA node: cores 4, 5, 6, 7."
    sets = assign_cores([model("one", cores=3), model("two", threads=2)], [(0, 1, 2, 3), (4, 5, 6, 7)])
    assert sets == CoreSets(((1, 2, 3), (4, 5, 6, 7)), (0, 4, 5, 6, 7))


ENTRIES = st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.lists(ENTRIES, max_size=5))
def test_no_core_is_reserved_twice_or_used_by_others(
    sizes: list[int], entries: list[tuple[int, ...]]
) -> None:
    nodes, first = [], 0
    for size in sizes:
        nodes.append(tuple(range(first, first + size)))
        first += size
    models = list[FoundModel]()
    for n, (groups, cores, ranks, threads) in enumerate(entries):
        one = model(
            f"m{n}",
            groups=groups,
            tensor_parallel=ranks,
            threads=threads,
            **({"cores": cores} if cores else {}),
        )
        if num_reserved([*models, one]) < first:
            models.append(one)
    sets = assign_cores(models, nodes)
    counts = [one.entry.cores for one in models for _ in range(one.entry.groups)]
    reserved = [core for count, cores in zip(counts, sets.groups, strict=True) if count for core in cores]
    assert [len(cores) for count, cores in zip(counts, sets.groups, strict=True) if count] == list(
        filter(None, counts)
    )
    assert len(set(reserved)) == len(reserved)
    free = set(range(first)) - set(reserved)
    assert free
    assert set(sets.others) == (free if reserved else set())
    for count, assigned in zip(counts, sets.groups, strict=True):
        assert count or set(assigned) <= free


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cores": 4}, "of 4 cores one is for the other services: reserve fewer"),
        ({"cores": 2, "groups": 2}, "reserve fewer; these are for each of 2 groups"),
        ({"cores": 1, "tensor_parallel": 2}, "the ranks of a group compute with 2 threads: reserve as many"),
        ({"cores": 2, "threads": 3}, "the ranks of a group compute with 3 threads: reserve as many"),
    ],
)
def test_too_few_cores_are_a_mistake(fields: dict[str, int], said: str) -> None:
    entry = ModelEntry.model_validate({"source": "x", "name": "one", **fields})
    declared = Declaration(entries={0: entry}, labels={0: "one"})
    with_reserved([FoundModel(entry, None)], 4, declared)
    with pytest.raises(Exception, match=said):
        declared.refuse_problems()


def test_groups_and_threads_follow_from_the_cores() -> None:
    entry = ModelEntry.model_validate({"source": "x", "name": "one", "cores": 3, "tensor_parallel": 2})
    (settled,) = with_reserved([FoundModel(entry, None)], 4, Declaration())
    assert (settled.entry.groups, settled.entry.threads) == (1, 1)
    other = model("two")
    assert with_reserved([other], 4, Declaration()) == (other,)


async def test_every_process_of_the_plan_has_its_cores(tmp_path: Path) -> None:
    models = [model("one"), model("two", cores=1, load="demand")]
    plan = plan_stack(options(tmp_path), models, probes := Probes(), {})
    found = plan.on_cores(CoreSets(((0,), (1,)), (0,)))
    assert {spec.cores for spec in found.specs} == {(0,)}
    assert [spec.cores for spec in found.sleeping] == [(1,)]
    assert [spec.cores for spec in found.more_leaders(model("three"))] == [(0,)]
    assert {spec.cores for spec in plan.on_cores(CoreSets()).specs} == {()}
    await probes.close()


async def test_ranks_of_a_lower_priority_give_way(tmp_path: Path) -> None:
    models = [model("one", priority=2), model("two"), model("three", priority=-10)]
    probes = Probes()
    plan = plan_stack(options(tmp_path), models, probes, {})
    nice = {spec.model: spec.env.get("RYZ_RANK_NICE") for spec in plan.specs if spec.model}
    assert nice == {"one": None, "two": "12", "three": "19"}
    plan = plan_stack(options(tmp_path), models, probes, {"RYZ_RANK_NICE": "3"})
    assert not any("RYZ_RANK_NICE" in spec.env for spec in plan.specs), "the operator's value holds for all"
    await probes.close()


def test_the_systems_nodes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 6})
    for number, text in enumerate(["0-1,4\n", "2-3\n", "5-7\n"]):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(text)
    assert usable_nodes(tmp_path) == [(0, 1, 4), (6,)]
    assert usable_nodes(tmp_path / "none") == [(0, 1, 4, 6)]
