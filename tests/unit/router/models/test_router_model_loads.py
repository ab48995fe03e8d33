"""Which models are loaded, in which order, and where."""

import itertools

import pytest

from services.router.domain.models.control_state import (
    Demand,
    GroupState,
    HostState,
    Load,
    ModelFleet,
    Refused,
)
from services.router.domain.models.decision import decide
from shared.messages import OfferedModel
from tests.kits.router.models.states import busy, fleet, host, idle, offer, starting, stopping

A, B = offer("a"), offer("b")


def test_no_demand_loads_nothing() -> None:
    assert decide(fleet(host(10, [A, B]))) == []
    assert decide(ModelFleet((host(10, [A]),), {"a": Demand(0, 9.0)})) == []


def test_demand_loads_a_group() -> None:
    assert decide(fleet(host(10, [A, B]), a=0.0)) == [Load("h1", "a", "demand")]


@pytest.mark.parametrize(
    "group",
    [
        starting("g1", "a"),
        idle("g1", "a"),
        busy("g1", "a"),
        GroupState("g1", "a", 4, ready=False, ready_s=9.0, load_s=1.0),
    ],
    ids=["starting", "idle", "busy", "away for a moment"],
)
def test_demand_for_a_model_with_a_group_loads_no_second_one(group: GroupState) -> None:
    several = offer("a", most=3)
    assert decide(fleet(host(20, [several], group), host(20, [several], name="h2"), a=60.0)) == []


@pytest.mark.parametrize(
    ("budget", "groups", "loads"),
    [
        (4, (), True),
        (8, (busy("g1", "b"),), True),
        (7, (busy("g1", "b"),), False),
        (8, (stopping("g1", "b", 5),), False),
        (8, (stopping("g1", "a", 4),), True),
        (7, (stopping("g1", "a", 4),), False),
        (9, (busy("g1", "unknown", 5),), True),
    ],
)
def test_memory_of_all_groups_counts(budget: int, groups: tuple[GroupState, ...], loads: bool) -> None:
    """Those that stop, and those of models that are not offered; a group that stops shares no weights."""
    expected = [Load("h1", "a", "demand")] if loads else []
    assert decide(fleet(host(budget, [A, B], *groups), a=0.0)) == expected


def test_one_group_starts_at_a_time_on_a_host() -> None:
    assert decide(fleet(host(20, [A, B]), a=1.0, b=2.0)) == [Load("h1", "b", "demand")]
    assert decide(fleet(host(20, [A, B], starting("g1", "b")), a=1.0)) == []
    both = fleet(host(20, [A, B], starting("g1", "b")), host(20, [A, B], name="h2"), a=1.0)
    assert decide(both) == [Load("h2", "a", "demand")]


def test_one_more_group_needs_less() -> None:
    least = offer("a", 4, next_bytes=2, least=2, most=2)
    assert decide(fleet(host(6, [least], busy("g1", "a")))) == [Load("h1", "a", "least")]
    assert decide(fleet(host(5, [least], busy("g1", "a")))) == []
    assert decide(fleet(host(7, [least], stopping("g1", "a")))) == []


@pytest.mark.parametrize(
    ("first", "second", "waits", "loaded"),
    [
        (offer("a"), offer("b"), (1.0, 2.0), "b"),
        (offer("a"), offer("b"), (1.0, 1.0), "a"),
        (offer("a", priority=1), offer("b"), (1.0, 2.0), "a"),
        (offer("a", priority=1), offer("b"), (1.0, 6.0), "b"),
        (offer("a", priority=1), offer("b", load_s=3.0), (1.0, 6.0), "a"),
        (offer("a", priority=1), offer("b", wish="load"), (6.0, 0.0), "b"),
        (offer("a", priority=1), offer("b", least=1), (6.0, 0.0), "b"),
        (offer("a", least=1), offer("b", least=1, priority=1), (0.0, 0.0), "b"),
    ],
    ids=[
        "longest wait",
        "same wait: by name",
        "priority",
        "waited too long",
        "not yet too long for a slow load",
        "wish",
        "least number",
        "priority of least numbers",
    ],
)
def test_order(first: OfferedModel, second: OfferedModel, waits: tuple[float, float], loaded: str) -> None:
    (action,) = decide(fleet(host(20, [first, second]), a=waits[0], b=waits[1]))
    assert isinstance(action, Load)
    assert action.model == loaded


@pytest.mark.parametrize(
    "broken", [offer("a", retry_s=3.0), offer("a", wish="unload"), offer("a", most=0)]
)  # fmt: skip
def test_models_that_are_not_loaded(broken: OfferedModel) -> None:
    assert decide(fleet(host(10, [broken]), a=60.0)) == []
    other = fleet(host(10, [broken]), host(10, [offer("a")], name="h2"), a=60.0)
    assert decide(other) == [Load("h2", "a", "demand")]


def test_a_failed_model_reserves_nothing() -> None:
    failed = offer("a", 8, least=1, retry_s=3.0)
    assert decide(fleet(host(10, [failed, B]), a=60.0, b=0.0)) == [Load("h1", "b", "demand")]


def test_memory_is_reserved_for_who_waits_for_it() -> None:
    """A group stops for a; b came later and must not take what becomes free."""
    groups = (stopping("g1", "c", 4), busy("g2", "d", 4))
    waits = host(10, [offer("a", 6), offer("b", 2), offer("c"), offer("d")], *groups)
    assert decide(fleet(waits, a=2.0, b=1.0)) == []
    assert decide(fleet(waits, a=1.0, b=2.0)) == [Load("h1", "b", "demand")]


def test_the_host_with_room_and_local_weights_first() -> None:
    roomy, local = host(30, [A], name="h1"), host(10, [offer("a", local=True)], name="h2")
    full = host(4, [A, B], idle("g1", "b"), name="h0")
    assert decide(fleet(full, roomy, local, a=0.0)) == [Load("h2", "a", "demand")]
    assert decide(fleet(full, roomy, a=0.0)) == [Load("h1", "a", "demand")]


def test_a_wish_and_demand_load_one_group() -> None:
    wished = offer("a", wish="load", most=2)
    assert decide(fleet(host(20, [wished]), a=9.0)) == [Load("h1", "a", "wish")]
    other = host(20, [offer("a", most=2)], name="h2")
    assert decide(fleet(host(20, [wished]), other, a=9.0)) == [Load("h1", "a", "wish")]


def test_least_numbers_are_loaded_one_after_another() -> None:
    offers = [offer("a", least=2, most=2), offer("b", least=1, priority=1)]
    groups: list[GroupState] = []
    order = []
    while loads := decide(fleet(host(20, offers, *groups))):
        (load,) = loads
        assert isinstance(load, Load)
        order.append((load.model, load.reason))
        groups.append(idle(f"g{len(groups)}", load.model))
    assert order == [("b", "least"), ("a", "least"), ("a", "least")]


@pytest.mark.parametrize(
    ("of_host", "why"),
    [
        (
            host(2**30, [offer("a", 2**30 + 2**29)]),
            "1.5 GiB of memory, and the host with the most room for it has 1.0 GiB.",
        ),
        (
            host(8 * 2**20, [offer("a", 5 * 2**20)], busy("g1", "not offered", 4 * 2**20)),
            "5 MiB of memory, and the host with the most room for it has 8 MiB, "
            "of which models that stay loaded take 4 MiB.",
        ),
        (
            host(8 * 2**20, [offer("a", 5 * 2**20), offer("b", pinned=True)], idle("g1", "b", 4 * 2**20)),
            "5 MiB of memory, and the host with the most room for it has 8 MiB, "
            "of which models that stay loaded take 4 MiB.",
        ),
        (
            host(8 * 2**20, [offer("a", 5 * 2**20), offer("b", least=1)], starting("g1", "b", 4 * 2**20)),
            "5 MiB of memory, and the host with the most room for it has 8 MiB, "
            "of which models that stay loaded take 4 MiB.",
        ),
    ],
    ids=["budget", "not offered", "pinned", "least"],
)  # fmt: skip
def test_a_model_that_can_never_fit_is_refused(of_host: HostState, why: str) -> None:
    assert decide(fleet(of_host, a=0.0)) == [Refused("a", f"The model a needs {why}")]
    assert decide(fleet(of_host)) == [], "nobody asks for it"
    larger = host(2**40, [offer("a", 5, retry_s=9.0)], name="h2")
    assert decide(fleet(of_host, larger, a=0.0)) == [], "it fits elsewhere, later"


def test_a_refused_model_reserves_and_evicts_nothing() -> None:
    groups = (idle("g1", "b", 2), idle("g2", "c", 6))
    of_host = host(10, [offer("a", 8), offer("b", 2), offer("c", 6, pinned=True), offer("d", 2)], *groups)
    first, second = decide(fleet(of_host, a=60.0, d=0.0))
    assert isinstance(first, Refused)
    assert second == Load("h1", "d", "demand")


def test_the_order_of_parts_does_not_matter() -> None:
    offers = [offer("a"), offer("b", least=1), offer("c"), offer("d", sleep_s=5.0)]
    groups = [idle("g1", "c"), idle("g2", "d"), busy("g3", "d")]
    waits = {"a": 1.0, "b": 1.0, "e": 2.0}
    expected = decide(fleet(host(12, offers, *groups), host(4, offers, name="h2"), **waits))
    assert expected
    for names in itertools.permutations(waits):
        other = host(12, offers[::-1], *groups[::-1])
        shuffled = fleet(host(4, offers[::-1], name="h2"), other, **{name: waits[name] for name in names})
        assert decide(shuffled) == expected
