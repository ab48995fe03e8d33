"""Several routers share the requests: each knows about how many, and so about how much all of them sent."""

import random

import pytest

from services.router.domain.groups.fleet import Fleet
from services.router.domain.router_count import RouterCount
from tests.kits.router.fleet import beat, new_fleet

BURST = 60


def fleets(number: int) -> list[Fleet]:
    """The fleets of so many routers, which have heard each other and one group."""
    made = [new_fleet() for _ in range(number)]
    for index, fleet in enumerate(made):
        fleet.observe(beat(1, accepted=5), 0.0)
        for other in range(number):
            if other != index:
                fleet.routers.heard(f"router-{other}", 0.0)
    return made


def held(fleet: Fleet, now: float) -> int:
    view = fleet.view("m", now).ready[0]
    return view.running + view.waiting


def test_routers_are_counted_until_they_leave_or_fall_silent() -> None:
    routers = RouterCount()
    assert routers.count(0.0) == 1
    routers.heard("a", 0.0)
    routers.heard("b", 0.0)
    routers.heard("a", 2.0)
    assert routers.count(2.9) == 3
    assert routers.count(3.0) == 2
    routers.left("a")
    assert routers.count(3.1) == 1
    routers.heard("a", 3.2)
    assert routers.count(3.3) == 2
    assert routers.count(100.0) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_router_sees_about_the_whole_of_a_burst(number: int) -> None:
    made, rng = fleets(number), random.Random(0)
    for _ in range(BURST):
        rng.choice(made).count_sent("g0", 10, 0.01)
    for fleet in made:
        assert 0.6 * BURST <= held(fleet, 0.01) <= 1.4 * BURST
    if number == 1:
        assert held(made[0], 0.01) == BURST


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_single_request_stands_for_itself(number: int) -> None:
    fleet = fleets(number)[0]
    fleet.count_sent("g0", 10, 0.01)
    assert held(fleet, 0.01) == 1


def test_what_a_heartbeat_counted_of_all_routers_is_not_counted_again() -> None:
    fleet = fleets(2)[0]
    for _ in range(10):
        fleet.count_sent("g0", 10, 0.05)
    assert held(fleet, 0.05) == 19
    fleet.observe(beat(2, running=8, waiting=11, accepted=5 + 19), 0.1)
    assert held(fleet, 0.1) == 19
