"""Which groups stop for another model's memory: idle ones by value, busy ones in turns."""

import pytest

from services.router.domain.models.control_state import GroupState, Load, Stop
from services.router.domain.models.decision import decide
from shared.messages import OfferedModel
from tests.kits.router.models.states import busy, fleet, host, idle, offer, starting, stopping

A = offer("a", 4)


def stopped(budget: int, offers: list[OfferedModel], *groups: GroupState, **waited_s: float) -> list[str]:
    """Groups that stop for `a`, which waits."""
    actions = decide(fleet(host(budget, [A, *offers], *groups), **({"a": 0.0} | waited_s)))
    assert not [one for one in actions if isinstance(one, Load)]
    stops = [one for one in actions if isinstance(one, Stop)]
    assert all(stop.wanted_by == "a" for stop in stops)
    return [stop.group for stop in stops]


def test_an_idle_group_is_evicted() -> None:
    evicted = decide(fleet(host(6, [A, offer("b")], idle("g1", "b")), a=0.0))
    assert evicted == [Stop("h1", "g1", "evicted", "a")]


@pytest.mark.parametrize("by", ["wish", "least"])
def test_wishes_and_least_numbers_evict_too(by: str) -> None:
    wanted = offer("a", wish="load") if by == "wish" else offer("a", least=1)
    evicted = decide(fleet(host(6, [wanted, offer("b")], idle("g1", "b"))))
    assert evicted == [Stop("h1", "g1", "evicted", "a")]


@pytest.mark.parametrize(
    ("group", "offered"),
    [
        (busy("g1", "b", ready_s=4.0), offer("b")),
        (starting("g1", "b"), offer("b")),
        (idle("g1", "b", ready_s=9.0, idle_s=9.0, served=False), offer("b")),
        (idle("g1", "b", ready_s=1.5, load_s=0.5), offer("b")),
        (idle("g1", "b", ready_s=3.5, load_s=4.0), offer("b")),
        (idle("g1", "b"), offer("b", pinned=True)),
        (idle("g1", "b"), offer("b", least=1)),
        (idle("g1", "b"), offer("other")),
        (GroupState("g1", "b", 4, ready_s=60.0, load_s=1.0, served=True), offer("b")),
    ],
    ids=[
        "busy",
        "starting",
        "not used yet",
        "just ready",
        "slow to load",
        "pinned",
        "least",
        "not offered",
        "away for a moment",
    ],
)
def test_groups_that_stay(group: GroupState, offered: OfferedModel) -> None:
    assert stopped(6, [offered], group) == []
    assert stopped(6, [offered], group, a=60.0) == [], "however long it waits"


def test_a_group_whose_model_is_wanted_stays() -> None:
    assert stopped(6, [offer("b")], idle("g1", "b", ready_s=4.0), b=0.0) == []
    assert stopped(6, [offer("b")], idle("g1", "b", ready_s=4.0)) == ["g1"]


def test_an_unused_group_is_evicted_after_a_time() -> None:
    assert stopped(6, [offer("b")], idle("g1", "b", ready_s=10.0, idle_s=10.0, served=False)) == ["g1"]


@pytest.mark.parametrize(
    ("first", "second", "offers"),
    [
        (idle("g1", "b", idle_s=10.0), idle("g2", "c", idle_s=60.0), [offer("b"), offer("c")]),
        (idle("g1", "b", load_s=9.0), idle("g2", "c", load_s=1.0), [offer("b"), offer("c")]),
        (idle("g1", "b", 4), idle("g2", "c", 5), [offer("b"), offer("c")]),
        (idle("g1", "b"), idle("g2", "c", idle_s=5.0), [offer("b", priority=1), offer("c")]),
        (idle("g1", "b"), idle("g2", "b", ready_s=30.0), [offer("b", most=2), offer("c")]),
    ],
    ids=["used lately", "slow to load", "small", "priority", "first of two"],
)
def test_the_group_of_least_value_goes_first(
    first: GroupState, second: GroupState, offers: list[OfferedModel]
) -> None:
    assert stopped(first.charged_bytes + second.charged_bytes, offers, first, second) == ["g2"]


def test_only_if_they_suffice_and_no_more_than_needed() -> None:
    offers = [offer("b", 2), offer("c", 2), offer("d", 4)]
    small, other = idle("g1", "b", 2, idle_s=90.0), idle("g2", "c", 2, idle_s=80.0)
    assert stopped(6, offers, small, busy("g2", "d", 4, ready_s=1.0)) == []
    assert stopped(4, offers, small, other) == ["g1", "g2"]
    large = idle("g3", "d", 4, idle_s=10.0)
    assert stopped(8, offers, small, other, large) == ["g1", "g2"]
    assert stopped(6, offers, small, large) == ["g3"], "the cheapest one does not suffice, and is not needed"


def test_groups_that_stop_are_waited_for() -> None:
    offers = [offer("b"), offer("c")]
    assert stopped(8, offers, stopping("g1", "b"), idle("g2", "c")) == []
    assert stopped(8, offers, stopping("g1", "b", 3), idle("g2", "c", 5)) == ["g2"], "it does not suffice"
    assert stopped(8, offers, stopping("g1", "b"), busy("g2", "c"), a=60.0) == []


def test_what_groups_share_stays_with_the_last_of_them() -> None:
    """The first group is charged with the weights; while the second one runs, they stay."""
    shared = offer("b", 6, next_bytes=1, most=2, least=1)
    assert stopped(8, [shared], idle("g1", "b", 6), idle("g2", "b", 1)) == []
    alone = offer("b", 6, next_bytes=1, most=2)
    assert stopped(8, [alone], idle("g1", "b", 6), idle("g2", "b", 1, ready_s=9.0)) == ["g2", "g1"]


def test_the_cheapest_host() -> None:
    offers = [A, offer("b"), offer("c")]
    costly, cheap = host(4, offers, idle("g1", "b", load_s=9.0)), host(4, offers, idle("g2", "c"), name="h2")
    assert decide(fleet(costly, cheap, a=0.0)) == [Stop("h2", "g2", "evicted", "a")]
    ends = host(4, offers, stopping("g3", "b"), name="h3")
    assert decide(fleet(costly, cheap, ends, a=0.0)) == [], "where memory becomes free anyway"


@pytest.mark.parametrize(
    ("group", "waited_s", "rotates"),
    [
        (busy("g1", "b"), 5.0, True),
        (busy("g1", "b"), 4.9, False),
        (busy("g1", "b", ready_s=4.9), 60.0, False),
        (busy("g1", "b", ready_s=5.0), 5.0, True),
        (busy("g1", "b", ready_s=14.0, load_s=5.0), 60.0, False),
        (busy("g1", "b", ready_s=15.0, load_s=5.0), 60.0, True),
        (starting("g1", "b"), 60.0, False),
    ],
)
def test_a_busy_group_is_drained_for_a_model_that_waited_too_long(
    group: GroupState, waited_s: float, rotates: bool
) -> None:
    expected = [Stop("h1", "g1", "rotated", "a")] if rotates else []
    assert decide(fleet(host(6, [A, offer("b")], group), a=waited_s)) == expected


def test_a_slow_model_waits_longer() -> None:
    slow = offer("a", 4, load_s=4.0)
    assert decide(fleet(host(6, [slow, offer("b")], busy("g1", "b")), a=11.0)) == []
    assert len(decide(fleet(host(6, [slow, offer("b")], busy("g1", "b")), a=12.0))) == 1


def test_which_busy_group_is_drained() -> None:
    offers = [offer("b", most=2), offer("c"), offer("d", pinned=True)]
    longest = busy("g1", "d", ready_s=99.0)
    older, newer = busy("g2", "b", ready_s=30.0), busy("g3", "c", ready_s=20.0)
    assert stopped(12, offers, longest, older, newer, a=9.0) == ["g2"], "the longest that is not pinned"
    second = busy("g4", "b", 4, ready_s=10.0)
    alone = busy("g3", "c", ready_s=40.0)
    assert stopped(16, offers, longest, older, alone, second, a=9.0) == ["g2"], "b keeps a group"


def test_rotation_takes_as_many_as_are_needed_and_idle_ones_first() -> None:
    offers = [offer("b", 2), offer("c", 2), offer("d", 4)]
    small, other = busy("g1", "b", 2, ready_s=40.0), busy("g2", "c", 2, ready_s=30.0)
    assert stopped(4, offers, small, other, a=9.0) == ["g1", "g2"]
    assert stopped(4, offers, small, busy("g2", "c", 2, ready_s=3.0), a=9.0) == [], "not enough"
    actions = decide(fleet(host(4, [A, *offers], small, idle("g2", "c", 2)), a=9.0))
    assert actions == [Stop("h1", "g2", "evicted", "a"), Stop("h1", "g1", "rotated", "a")]


def test_one_rotation_at_a_time_on_a_host() -> None:
    offers = [A, offer("b"), offer("c"), offer("d")]
    groups = [busy("g1", "c", ready_s=30.0), busy("g2", "d", ready_s=20.0)]
    one = decide(fleet(host(8, offers, *groups), a=9.0, b=8.0))
    assert one == [Stop("h1", "g1", "rotated", "a")]
    groups[0] = stopping("g1", "c")
    assert decide(fleet(host(8, offers, *groups), a=9.0, b=8.0)) == [], "a's turn is not over"
    groups[0] = starting("g3", "a")
    assert decide(fleet(host(8, offers, *groups), b=8.0)) == []
    groups[0] = busy("g3", "a", ready_s=1.0)
    assert decide(fleet(host(8, offers, *groups), b=8.0)) == [Stop("h1", "g2", "rotated", "b")]


def test_a_large_model_is_not_starved_by_small_ones() -> None:
    """Memory that is free stays free for it until the others have run for their quantum."""
    offers = [offer("a", 8), offer("b", 4), offer("c", 4)]
    lately = busy("g1", "b", ready_s=1.0)
    assert decide(fleet(host(8, offers, lately), a=9.0, c=0.0)) == []
    assert decide(fleet(host(8, offers, lately), a=1.0, c=0.0)) == [Load("h1", "c", "demand")]
    two = [host(8, offers, lately), host(8, offers, busy("g2", "c", ready_s=1.0), name="h2")]
    assert decide(fleet(*two, a=9.0)) == []


def test_idle_groups_give_back_memory_when_the_host_is_over_its_budget() -> None:
    offers = [offer("b"), offer("c"), offer("d")]
    groups = [idle("g1", "b", 4), idle("g2", "c", 4, idle_s=90.0), busy("g3", "d", 4)]
    assert decide(fleet(host(12, offers, *groups))) == []
    assert decide(fleet(host(11, offers, *groups))) == [Stop("h1", "g2", "evicted")]
    groups[1] = stopping("g2", "c")
    assert decide(fleet(host(11, offers, *groups))) == []
