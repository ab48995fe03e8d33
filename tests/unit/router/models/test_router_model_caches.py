"""KV caches shrink before groups end, and grow again when memory is free. One byte is one unit."""

import pytest

from services.router.domain.models.assumed import Sent, assume
from services.router.domain.models.control_state import (
    Action,
    GroupState,
    KVState,
    Load,
    Refused,
    Resize,
    Stop,
)
from services.router.domain.models.decision import decide
from shared.messages import OfferedModel
from tests.kits.router.models.states import busy, fleet, host, idle, offer, starting, stopping

A = offer("a", 40)


def kv(limit: int = 32, most: int = 32, least: int = 8, needed: int = 0, age_s: float = 60.0) -> KVState:
    return KVState(limit, most, least, needed, age_s=age_s)


def decided(budget: int, offers: list[OfferedModel], *groups: GroupState, **waited_s: float) -> list[Action]:
    """What is done for `a`, which waits."""
    return decide(fleet(host(budget, [A, *offers], *groups), **({"a": 0.0} | waited_s)))


def test_a_cache_makes_room_and_no_group_ends() -> None:
    (resized,) = decided(100, [offer("b")], idle("g1", "b", 80, kv=kv()))
    assert resized == Resize("h1", "g1", 12, "wanted", "a")


@pytest.mark.parametrize(
    "group",
    [
        idle("g1", "b", 80, kv=kv(needed=20)),
        idle("g1", "b", 80, kv=kv(least=20)),
        idle("g1", "b", 80, kv=kv(16)),
        idle("g1", "b", 80),
    ],
    ids=["needed", "the model's minimum", "small already", "keeps its size"],
)
def test_an_idle_group_ends_where_smaller_caches_are_not_enough(group: GroupState) -> None:
    assert decided(100, [offer("b")], group) == [Stop("h1", "g1", "evicted", "a")]


def test_idle_caches_of_low_priority_that_were_unused_for_longest_shrink_first() -> None:
    offers = [offer("b"), offer("low", priority=-1, most=2), offer("c")]
    groups = (
        busy("g1", "low", 40, kv=kv()),
        idle("g2", "b", 40, idle_s=50, kv=kv()),
        idle("g3", "c", 40, idle_s=70, kv=kv()),
        idle("g4", "low", 40, idle_s=1, kv=kv()),
    )
    resized = [one for one in decided(160, offers, *groups) if isinstance(one, Resize)]
    assert [(one.group, one.kv_bytes) for one in resized] == [("g4", 8), ("g3", 16)]


def test_a_cache_shrinks_by_a_part_that_is_worth_it() -> None:
    (resized,) = decided(119, [offer("b")], idle("g1", "b", 80, kv=kv(320, 320)))
    assert resized == Resize("h1", "g1", 300, "wanted", "a")


def test_caches_and_idle_groups_make_room_together() -> None:
    assert decided(90, [offer("b"), offer("c")], busy("g1", "b", 60, kv=kv()), idle("g2", "c", 30)) == [
        Resize("h1", "g1", 22, "wanted", "a"),
        Stop("h1", "g2", "evicted", "a"),
    ]


def test_memory_that_a_smaller_cache_frees_is_waited_for() -> None:
    before = fleet(host(100, [A, offer("b")], idle("g1", "b", 80, kv=kv())), a=0.0)
    (resized,) = decide(before)
    assert isinstance(resized, Resize)
    assert decide(assume(before, [Sent(resized)])) == []
    after = fleet(host(100, [A, offer("b")], idle("g1", "b", 60, kv=kv(12, age_s=0.5))), a=1.0)
    assert decide(after) == [Load("h1", "a", "demand")]


def test_a_cache_that_has_just_grown_is_waited_for() -> None:
    assert decided(100, [offer("b")], idle("g1", "b", 80, kv=kv(age_s=1.5))) == []
    assert decided(100, [offer("b")], idle("g1", "b", 80, kv=kv(age_s=2.0))) != []


def test_a_model_fits_beside_a_pinned_one_with_a_small_cache() -> None:
    pinned = offer("b", pinned=True)
    (resized,) = decided(100, [pinned], busy("g1", "b", 80, kv=kv()))
    assert isinstance(resized, Resize)
    (refused,) = decided(90, [pinned], busy("g1", "b", 80, kv=kv()))
    assert isinstance(refused, Refused)
    assert decided(100, [pinned], busy("g1", "b", 80, kv=kv(needed=30))) == []  # its requests end


def test_a_host_over_its_budget_has_smaller_caches_before_groups_end() -> None:
    groups = (idle("g1", "b", 60, kv=kv()), idle("g2", "c", 60))
    offers = [offer("b"), offer("c")]
    assert decide(fleet(host(110, offers, *groups))) == [Resize("h1", "g1", 22, "budget")]
    groups = (busy("g1", "b", 60, kv=kv()), idle("g2", "c", 60))
    assert decide(fleet(host(90, offers, *groups))) == [
        Resize("h1", "g1", 8, "budget"),
        Stop("h1", "g2", "evicted"),
    ]
    assert decide(fleet(host(50, offers, idle("g1", "b", 60, kv=kv())))) == [
        Resize("h1", "g1", 22, "budget"),
    ]
    assert decide(fleet(host(30, offers, idle("g1", "b", 60, kv=kv())))) == [Stop("h1", "g1", "evicted")]


def test_caches_grow_where_memory_is_free() -> None:
    def grown(budget: int, *groups: GroupState, **waited_s: float) -> list[Action]:
        return decide(fleet(host(budget, [A, offer("b"), offer("c", priority=1)], *groups), **waited_s))

    small = idle("g1", "b", 60, kv=kv(8))
    assert grown(100, small) == [Resize("h1", "g1", 32, "free")]
    assert grown(75, small) == [Resize("h1", "g1", 21, "free")]  # less a margin of 2
    assert grown(64, idle("g1", "b", 60, kv=kv(8, 320))) == []  # too little to matter
    assert grown(100, idle("g1", "b", 60, kv=kv(8, age_s=9.0))) == []
    assert grown(100, small, stopping("g2", "c", 1)) == []
    assert grown(100, small, starting("g2", "c", 1)) == []
    assert not [one for one in grown(100, small, a=0.0) if isinstance(one, Resize)]  # a load comes first
    first, then = grown(170, small, busy("g2", "c", 60, kv=kv(8)))
    assert (first, then) == (Resize("h1", "g2", 32, "free"), Resize("h1", "g1", 29, "free"))


def test_more_for_a_cache_counts_as_soon_as_it_is_sent() -> None:
    before = fleet(host(100, [offer("b")], idle("g1", "b", 60, kv=kv(8))))
    ((group,),) = (one.groups for one in assume(before, [Sent(Resize("h1", "g1", 32, "free"))]).hosts)
    assert (group.charged_bytes, group.kv.limit_bytes, group.kv.age_s) == (84, 32, 0.0)
