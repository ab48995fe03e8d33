"""The hybrid policy (option D): when a session stays, when it moves, and when it comes back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.decision import Assignment, FleetView, GroupView, RequestFacts
from services.router.domain.policies import Hybrid, HybridLimits
from services.router.domain.policies.costs import Costs
from services.router.domain.rendezvous import preferred

COSTS = Costs(
    assumed_tokens_per_s=1000.0, assumed_fetch_tokens_per_s=10_000.0, assumed_fetch_s=0.05, lead_price=0.1
)


def group(name: str, running: int = 0, waiting: int = 0, **more: Any) -> GroupView:
    wait_s = more.pop("wait_s", float(waiting))
    return GroupView(name, 1.0, running, waiting, 8, 16, wait_s, **more)


def measured(name: str, running: int = 1, **more: Any) -> GroupView:
    """Returns a group that computes 1,000 tokens/s, and fetches 10,000 tokens/s after 50 ms."""
    rates = {"recompute_tokens_per_s": 1000.0, "fetch_tokens_per_s": 10_000.0, "fetch_s": 0.05, "store": True}
    return group(name, running, **{**rates, **more})


def facts(last: str = "", tokens: int = 0, prompt: int = 10) -> RequestFacts:
    """Returns a request of a session whose preferred group is g0."""
    return RequestFacts("m", KEY, prompt, last, tokens)


def key_of(name: str) -> str:
    groups = [group("g0"), group("g1"), group("g2")]
    return next(k for k in map(str, range(100)) if preferred(k, groups).name == name)


KEY = key_of("g0")


def choose(request: RequestFacts, *groups: GroupView, **limits: Any) -> Assignment:
    policy = Hybrid(HybridLimits(**limits), COSTS)
    decision = policy.choose(request, FleetView("m", groups), 0.0)
    assert isinstance(decision, Assignment)
    return decision


def test_below_the_threshold_a_session_stays() -> None:
    assert choose(facts(), group("g0", 8, 1), group("g1")) == Assignment("g0", "preferred", "g0")
    assert choose(facts("g1"), group("g0"), group("g1", 8, 1)) == Assignment("g1", "last_group", "g0")


@pytest.mark.parametrize(
    ("tokens", "rates", "moves"),
    [
        (900, {}, True),  # computed again in 0.9 s
        (1100, {}, False),
        (9000, {"store": True}, True),  # fetched in 0.95 s
        (10_000, {"store": True}, False),
        (9000, {"store": True, "fetch_tokens_per_s": 100.0}, False),
        (9000, {"recompute_tokens_per_s": 20_000.0}, True),
    ],
)
def test_at_the_threshold_it_moves_if_that_is_faster_in_all(
    tokens: int, rates: dict[str, Any], moves: bool
) -> None:
    home, other = group("g0", 8, 2, wait_s=1.0, store=True), group("g1", **rates)
    chosen = choose(facts("g0", tokens), home, other)
    assert chosen == (
        Assignment("g1", "spill_wait", "g0") if moves else Assignment("g0", "preferred_busy", "g0")
    )


def test_a_group_without_the_store_has_nothing_to_fetch_from() -> None:
    home, other = group("g0", 8, 2, wait_s=1.0), group("g1", store=True)
    assert choose(facts("g0", 5000), home, other).reason == "preferred_busy"


def test_after_an_overflow_it_stays_where_its_kv_is_until_home_is_cheaper() -> None:
    assert choose(facts("g1", 500), group("g0"), group("g1", 4)).group == "g1"
    busy = group("g1", 8, 2, wait_s=0.4)
    assert choose(facts("g1", 500), group("g0"), busy) == Assignment("g1", "last_group_busy", "g0")
    busier = group("g1", 8, 2, wait_s=0.6)
    assert choose(facts("g1", 500), group("g0"), busier) == Assignment("g0", "return_home", "g0")


def test_of_home_and_the_least_loaded_the_cheaper_is_taken() -> None:
    busy, home = group("g1", 8, 4, wait_s=4.0), group("g0", 8, 1, wait_s=0.3)
    assert choose(facts("g1", 500), home, busy, group("g2")) == Assignment("g2", "spill_wait", "g0")
    assert choose(facts("g1", 500), home, busy, group("g2", 8, 1, wait_s=0.5)).group == "g0"


def test_prompts_that_wait_make_a_group_busy_with_an_empty_queue() -> None:
    home, other = measured("g0", wait_s=0.3), measured("g1")
    assert choose(facts("g0", 1000), home, other) == Assignment("g1", "spill_wait", "g0")  # it costs 0.15 s
    assert choose(facts("g0", 1000), home, other, router_threshold_s=0.5).reason == "preferred"
    unmeasured = group("g0", 1, wait_s=0.3, store=True)
    assert choose(facts("g0", 1000), unmeasured, other).reason == "preferred"


def test_work_beyond_the_share_moves_a_session_if_that_is_cheap() -> None:
    home, other = measured("g0", lead_s=1.0), measured("g1", lead_s=-1.0)
    assert choose(facts("g0", 1000), home, other) == Assignment("g1", "spill_balance", "g0")  # 0.15 < 0.2
    assert choose(facts("g0", 2000), home, other) == Assignment("g0", "preferred_busy", "g0")
    idle = measured("g0", 0, lead_s=1.0)
    assert choose(facts("g0", 1000), idle, other).reason == "preferred"


def test_equal_costs_are_no_reason_to_move() -> None:
    assert choose(facts(), group("g0", 8, 5), group("g1", 8, 5)).group == "g0"
    assert choose(facts("g1"), group("g0", 8, 5), group("g1", 8, 5)).group == "g1"


def test_a_full_group_is_left() -> None:
    full = group("g0", 8, 8)
    assert choose(facts(), full, group("g1", 8, 7)) == Assignment("g1", "spill_full", "g0")
    assert choose(facts("g1"), group("g0"), group("g1", 8, 8)) == Assignment("g0", "return_home", "g0")


def test_a_last_group_that_is_away_leads_home_and_by_the_same_costs_elsewhere() -> None:
    assert choose(facts("gone", 500), group("g0"), group("g1")) == Assignment("g0", "last_group_away", "g0")
    busy = group("g0", 8, 3, wait_s=0.1)
    assert choose(facts("gone", 500), busy, group("g1")) == Assignment("g1", "spill_wait", "g0")
    assert choose(facts("gone", 500), busy, group("g1", 8, 9)).reason == "last_group_away"


views = st.builds(
    measured,
    st.sampled_from(["g0", "g1", "g2"]),
    st.integers(0, 8),
    waiting=st.integers(0, 8),
    wait_s=st.floats(0, 10),
    lead_s=st.floats(-10, 10),
    store=st.booleans(),
)


@given(
    st.lists(views, min_size=1, unique_by=lambda g: g.name),
    st.sampled_from(["", "g0", "g1", "gone"]),
    st.integers(0, 5000),
)
def test_a_session_never_moves_to_a_dearer_group(groups: list[GroupView], last: str, tokens: int) -> None:
    view, request = FleetView("m", tuple(sorted(groups, key=lambda g: g.name))), facts(last, tokens)
    decision = Hybrid(HybridLimits(), COSTS).choose(request, view, 0.0)
    if not isinstance(decision, Assignment):
        assert all(g.full for g in groups)
        return
    stay = view.find(last or decision.preferred_group)
    chosen = view.find(decision.group)
    assert chosen is not None
    assert not chosen.full
    if stay is not None and not stay.full:
        cost = COSTS.total_s(request, chosen, stay)
        assert cost <= COSTS.total_s(request, stay, stay)
