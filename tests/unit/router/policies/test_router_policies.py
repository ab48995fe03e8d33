"""Each policy's choices, and the refusals that all of them share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.decision import Assignment, Decision, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.policies import Hybrid, PolicyName, make_policy
from services.router.domain.rendezvous import preferred
from tests.kits.router.fleet import POLICIES


def group(name: str, running: int = 0, waiting: int = 0, **more: float) -> GroupView:
    wait_s = more.get("wait_s", float(waiting))
    return GroupView(
        name, more.get("weight", 1.0), running, waiting, 8, 16, wait_s, more.get("tokens_per_s", 1000.0)
    )


def fleet(*groups: GroupView) -> FleetView:
    return FleetView("m", groups)


def facts(key: str = "s-1", tokens: int = 100, last_group: str = "") -> RequestFacts:
    return RequestFacts("m", key, tokens, last_group)


def key_of(name: str) -> str:
    """Returns a session key that prefers the named one of g0 and g1."""
    groups = [group("g0"), group("g1")]
    return next(k for k in map(str, range(100)) if preferred(k, groups).name == name)


def assigned(decision: Decision) -> Assignment:
    assert isinstance(decision, Assignment)
    return decision


group_views = st.builds(
    group,
    st.sampled_from(["g0", "g1", "g2", "g3"]),
    st.integers(0, 8),
    st.integers(0, 10),
    weight=st.floats(0.1, 4),
    wait_s=st.floats(0, 100),
)
fleets = st.lists(group_views, max_size=4, unique_by=lambda g: g.name).map(lambda groups: fleet(*groups))


@pytest.mark.parametrize("name", POLICIES)
@given(view=fleets, key=st.text(min_size=1), last=st.sampled_from(["", "g0", "gone"]))
def test_a_full_or_unknown_group_is_never_chosen(
    name: PolicyName, view: FleetView, key: str, last: str
) -> None:
    decision = make_policy(name).choose(facts(key, last_group=last), view, 0.0)
    open_groups = {g.name for g in view.ready if not g.full}
    if isinstance(decision, Assignment):
        assert decision.group in open_groups
    else:
        assert not open_groups


@pytest.mark.parametrize("name", POLICIES)
def test_all_full_is_refused_with_a_time_to_come_back(name: PolicyName) -> None:
    view = fleet(group("g0", 8, 8, wait_s=4.0), group("g1", 8, 8, wait_s=2.5))
    decision = make_policy(name).choose(facts(), view, 0.0)
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.reason) == ("overloaded", "all_full")
    assert decision.error().data == {"reason": "all_full", "retry_after_s": 2.5}
    assert "2 groups of model 'm' are full" in decision.message


def test_an_unknown_model_names_the_models_that_are_served() -> None:
    decision = Hybrid().choose(facts(), FleetView("m", (), {}, ("demo", "other")), 0.0)
    assert isinstance(decision, Refusal)
    assert decision.code == "model_not_found"
    assert decision.message == "no group serves model 'm'; models that are served: demo, other"
    assert decision.retry_after_s is None


def test_while_no_group_is_ready_no_model_is_unknown() -> None:
    """Its group may load its model, and not have sent a heartbeat yet."""
    decision = Hybrid().choose(facts(), FleetView("m"), 0.0)
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.reason) == ("unavailable", "no_group")
    assert "'m'" in decision.message
    assert decision.retry_after_s == 1.0


def test_a_known_model_without_a_ready_group_says_what_its_groups_do() -> None:
    decision = Hybrid().choose(facts(), FleetView("m", (), {"g1": "lost", "g0": "starting"}), 0.0)
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.reason) == ("unavailable", "no_group")
    assert "g0 is starting, g1 is lost" in decision.message
    assert decision.retry_after_s == 1.0


def test_round_robin_rotates_and_passes_over_full_groups() -> None:
    policy = make_policy("round_robin")
    view = fleet(group("g0"), group("g1", 8, 8), group("g2"))
    assert [assigned(policy.choose(facts(), view, 0.0)).group for _ in range(4)] == ["g0", "g2", "g0", "g2"]


def test_weighted_rotation_is_in_proportion_and_spread() -> None:
    policy = make_policy("weighted")
    view = fleet(group("g0", weight=3.0), group("g1", weight=1.0))
    turns = [assigned(policy.choose(facts(), view, 0.0)).group for _ in range(8)]
    assert turns == ["g0", "g0", "g1", "g0"] * 2


def test_least_loaded_looks_at_the_wait_and_then_at_use() -> None:
    policy = make_policy("least_loaded")
    assert assigned(policy.choose(facts(), fleet(group("g0", 8, 3), group("g1", 8, 2)), 0.0)).group == "g1"
    assert assigned(policy.choose(facts(), fleet(group("g0", 2), group("g1", 3)), 0.0)).group == "g0"


def test_sticky_ignores_load_until_the_group_is_full() -> None:
    policy, key = make_policy("sticky"), key_of("g0")
    busy = policy.choose(facts(key), fleet(group("g0", 8, 7), group("g1")), 0.0)
    assert busy == Assignment("g0", "preferred", "g0")
    full = policy.choose(facts(key), fleet(group("g0", 8, 8), group("g1")), 0.0)
    assert full == Assignment("g1", "spill_full", "g0")


def test_state_server_follows_the_session() -> None:
    policy, view = make_policy("state_server"), fleet(group("g0"), group("g1", 4))
    assert policy.choose(facts(last_group="g1"), view, 0.0) == Assignment("g1", "last_group", "g1")
    assert policy.choose(facts(), view, 0.0) == Assignment("g0", "new_session")
    assert policy.choose(facts(last_group="gone"), view, 0.0) == Assignment("g0", "last_group_away")
