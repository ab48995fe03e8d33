"""Which requests a router gives to a full group, so that its leader decides between tenants."""

import pytest

from services.router.domain.decision import Assignment, FleetView, GroupView, RequestFacts
from services.router.domain.policies.choice import at_a_full_group
from services.router.domain.policies.parties import Contests

FULL = GroupView("full", running=8, waiting=8, max_running=8, capacity=16, wait_s=2.0)
FULLER = GroupView("fuller", running=8, waiting=8, max_running=8, capacity=16, wait_s=3.0)


def test_one_tenant_alone_contests_nothing() -> None:
    contests = Contests(50.0)
    assert not contests.allows("a", 1, 0.0), "nothing was sent by this router"
    contests.served("a")
    assert not contests.allows("a", 1, 0.0), "it would be its own that gives way"
    assert contests.allows("b", 1, 0.0)
    contests.served("b")
    contests.served("c")
    assert all(contests.allows(tenant, 1, 0.0) for tenant in "abcd")


def test_slots_are_counted_by_tenant() -> None:
    contests = Contests(50.0)
    contests.served("a")
    contests.served("b")
    assert sum(contests.allows("a", 16, 0.0) for _ in range(100)) == 100 // 16
    assert sum(contests.allows("b", 1, 0.0) for _ in range(1000)) == 100, "two seconds at once"
    assert sum(contests.allows("b", 1, 1.0) for _ in range(1000)) == 50


def test_it_can_be_turned_off() -> None:
    contests = Contests(0.0)
    contests.served("a")
    assert not contests.allows("b", 1, 0.0)


@pytest.mark.parametrize(("pinned", "group"), [("", "full"), ("fuller", "fuller"), ("away", "full")])
def test_the_leader_that_is_asked(pinned: str, group: str) -> None:
    view = FleetView("m", (FULL, FULLER))
    assert at_a_full_group(RequestFacts("m", "key"), view, "why", pinned) == Assignment(group, "why")
