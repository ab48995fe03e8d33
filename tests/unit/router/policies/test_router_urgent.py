"""A group that breaks what it accepts; urgent and resumed requests; retry times in refusals."""

import pytest

from services.router.domain.decision import Assignment, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies import PolicyName, make_policy
from services.router.domain.policies.choice import choose
from shared.messages import Heartbeat, Load, ModelCard
from tests.kits.router.fleet import POLICIES

FREE = GroupView("free", running=1, max_running=8, capacity=16)
BUSY = GroupView("busy", running=8, waiting=2, max_running=8, capacity=16, wait_s=0.5)
FULL = GroupView("full", running=8, waiting=8, max_running=8, capacity=16, wait_s=2.0)
FULLER = GroupView("fuller", running=8, waiting=8, max_running=8, capacity=16, wait_s=3.0)


def beat(seq: int, accepted: int, ended: int, broken: int) -> Heartbeat:
    return Heartbeat(
        group="g0",
        instance_id="i",
        seq=seq,
        interval_ms=25,
        state="ready",
        model=ModelCard(name="m", context_length=64),
        load=Load(max_running=8, max_waiting=8),
        accepted_total=accepted,
        ended_total=ended,
        broken_total=broken,
    )


def test_a_group_that_breaks_all_that_it_accepts_is_tripped_by_its_heartbeats() -> None:
    fleet = Fleet(FleetLimits())
    fleet.observe(beat(1, 100, 90, 50), 0.0)  # ends before this router's start do not count
    changes = [fleet.observe(beat(1 + n, 100 + n, 90, 50 + n), 0.1 * n) for n in range(1, 5)]
    assert changes == ["same", "same", "tripped", "same"]
    assert fleet.view("m", 0.4).away == {"g0": "tripped"}
    assert fleet.view("m", 0.9).ready  # half open: one request may pass
    fleet.count_sent("g0", 1, 0.9)
    assert not fleet.view("m", 0.9).ready
    fleet.observe(beat(6, 105, 91, 54), 1.0)
    assert fleet.groups()[0].breaker.state(1.0) == "closed"


def facts(priority: int = 0, resumed: bool = False) -> RequestFacts:
    return RequestFacts("m", "key", 10, "busy", 100, priority, resumed)


@pytest.mark.parametrize("name", POLICIES)
def test_an_urgent_request_goes_to_the_least_loaded_full_group(name: PolicyName) -> None:
    view, policy = FleetView("m", (FULL, FULLER)), make_policy(name)
    assert isinstance(choose(facts(), view, 0.0, policy=policy), Refusal)
    assert isinstance(choose(facts(priority=-1), view, 0.0, policy=policy), Refusal)
    assert choose(facts(priority=1), view, 0.0, policy=policy) == Assignment("full", "urgent_full")
    assert choose(facts(resumed=True), view, 0.0, policy=policy) == Assignment("full", "resumed")


@pytest.mark.parametrize("name", POLICIES)
def test_a_resumed_request_goes_where_it_starts_soonest(name: PolicyName) -> None:
    view, policy = FleetView("m", (BUSY, FREE, FULL)), make_policy(name)
    assert choose(facts(resumed=True), view, 0.0, policy=policy) == Assignment("free", "resumed")
    urgent = choose(facts(priority=5), view, 0.0, policy=policy)
    assert isinstance(urgent, Assignment)
    assert urgent.reason != "urgent_full"


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_ready_group_all_are_refused(name: PolicyName) -> None:
    view, policy = FleetView("m", (), {"g0": "lost"}), make_policy(name)
    for request in (facts(), facts(priority=9), facts(resumed=True)):
        refused = choose(request, view, 0.0, policy=policy)
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.reason, refused.retry_after_s) == ("unavailable", "no_group", 1.0)


def test_a_pin_counts_for_urgent_and_resumed_requests_too() -> None:
    view, policy = FleetView("m", (FREE, FULL)), make_policy("hybrid")
    refused = choose(facts(), view, 0.0, policy=policy, pinned="full")
    assert isinstance(refused, Refusal)
    assert choose(facts(1), view, 0.0, policy=policy, pinned="full") == Assignment("full", "urgent_full")
    resumed = facts(resumed=True)
    assert choose(resumed, view, 0.0, policy=policy, pinned="full") == Assignment("full", "urgent_full")
    away = choose(resumed, view, 0.0, policy=policy, pinned="gone")
    assert away == Assignment("free", "pin_away")


def test_callers_are_not_told_to_come_back_at_one_time() -> None:
    refused = choose(facts(), FleetView("m", (FULL,)), 0.0, policy=make_policy("hybrid"))
    assert isinstance(refused, Refusal)
    for jitter, wait_s in ((0.8, 1.6), (1.2, 2.4)):
        error = refused.error(jitter)
        assert error.data["retry_after_s"] == wait_s
        assert error.message.endswith(f"are full; retry in {wait_s:g} s")
