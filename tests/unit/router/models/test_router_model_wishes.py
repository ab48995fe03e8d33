"""What stops without another model's need: wishes, surplus groups, models that are not used; and scaling."""

import pytest

from services.router.domain.models.control_state import GroupState, Load, Stop
from services.router.domain.models.decision import decide
from shared.messages import OfferedModel
from tests.kits.router.models.states import busy, fleet, host, idle, offer, starting, stopping


def test_unload_stops_all_groups_once() -> None:
    groups = [busy("g1", "a"), starting("g2", "a"), idle("g3", "a"), stopping("g4", "a")]
    of_host = host(20, [offer("a", wish="unload", most=4, least=1, pinned=True)], *groups)
    assert decide(fleet(of_host, a=60.0)) == [Stop("h1", name, "wish") for name in ("g1", "g2", "g3")]


@pytest.mark.parametrize(
    ("group", "stops"),
    [
        (idle("g1", "a", idle_s=0.1), True),
        (idle("g1", "a", ready_s=1.0), False),
        (busy("g1", "a"), False),
        (starting("g1", "a"), False),
    ],
)
def test_sleep_stops_groups_that_are_idle(group: GroupState, stops: bool) -> None:
    of_host = host(20, [offer("a", wish="sleep")], group)
    assert decide(fleet(of_host)) == ([Stop("h1", "g1", "wish")] if stops else [])
    assert decide(fleet(of_host, a=0.0)) == [], "it is wanted"


@pytest.mark.parametrize("kept", [offer("a", wish="sleep", pinned=True), offer("a", wish="sleep", least=1)])
def test_models_that_stay_loaded_do_not_sleep(kept: OfferedModel) -> None:
    assert decide(fleet(host(20, [kept], idle("g1", "a")))) == []


def test_demand_wakes_a_model_that_was_put_to_sleep() -> None:
    assert decide(fleet(host(20, [offer("a", wish="sleep")]), a=0.0)) == [Load("h1", "a", "demand")]


def test_a_wish_to_load_is_met_by_one_group() -> None:
    wished = offer("a", wish="load", most=2)
    assert decide(fleet(host(20, [wished]))) == [Load("h1", "a", "wish")]
    assert decide(fleet(host(20, [wished], starting("g1", "a")))) == []


@pytest.mark.parametrize(
    ("sleep_s", "idle_s", "stops"), [(5.0, 5.0, True), (5.0, 4.9, False), (0.0, 1e6, False)]
)  # fmt: skip
def test_a_model_sleeps_after_its_time(sleep_s: float, idle_s: float, stops: bool) -> None:
    of_host = host(20, [offer("a", sleep_s=sleep_s)], idle("g1", "a", idle_s=idle_s))
    assert decide(fleet(of_host)) == ([Stop("h1", "g1", "idle")] if stops else [])
    assert decide(fleet(of_host, a=0.0)) == [], "it is wanted"


@pytest.mark.parametrize(
    ("kept", "stops"),
    [
        (offer("a", sleep_s=5.0, most=3), ["g3", "g2", "g1"]),
        (offer("a", sleep_s=5.0, most=3, least=1), ["g3", "g2"]),
        (offer("a", sleep_s=5.0, most=3, least=3), []),
        (offer("a", sleep_s=5.0, most=3, pinned=True), ["g3", "g2"]),
    ],
    ids=["none", "least 1", "least 3", "pinned"],
)
def test_second_groups_end_first(kept: OfferedModel, stops: list[str]) -> None:
    groups = [idle("g1", "a", ready_s=90.0), idle("g2", "a", ready_s=80.0), idle("g3", "a", ready_s=70.0)]
    assert decide(fleet(host(20, [kept], *groups))) == [Stop("h1", name, "idle") for name in stops]


def test_surplus_groups_end_those_without_work_first() -> None:
    groups = [busy("g1", "a", waiting=3), busy("g2", "a"), idle("g3", "a", ready_s=1.0), starting("g4", "a")]
    for most, stops in [(4, []), (3, ["g4"]), (2, ["g4", "g3"]), (1, ["g4", "g3", "g2"])]:
        of_host = host(20, [offer("a", most=most, least=1)], *groups)
        assert decide(fleet(of_host)) == [Stop("h1", name, "surplus") for name in stops]


def test_groups_that_stop_are_no_surplus() -> None:
    groups = [stopping("g1", "a"), idle("g2", "a")]
    assert decide(fleet(host(20, [offer("a")], *groups))) == []


def test_queues_at_all_groups_start_another_one() -> None:
    several = offer("a", 4, next_bytes=2, most=2)
    assert decide(fleet(host(6, [several], busy("g1", "a", waiting=1)))) == [Load("h1", "a", "queue")]


@pytest.mark.parametrize(
    ("budget", "most", "groups"),
    [
        (20, 2, [busy("g1", "a")]),
        (20, 3, [busy("g1", "a", waiting=9), busy("g2", "a", 2)]),
        (20, 3, [busy("g1", "a", waiting=9), starting("g2", "a", 2)]),
        (20, 2, [busy("g1", "a", waiting=9), busy("g2", "a", 2, waiting=9)]),
        (5, 2, [busy("g1", "a", waiting=9)]),
        (9, 2, [busy("g1", "a", waiting=9), idle("g2", "b")]),
        (20, 2, [busy("g1", "a", waiting=9), starting("g2", "b")]),
    ],
    ids=["no queue", "one without", "one starts", "most", "no room", "no eviction", "host starts another"],
)
def test_when_no_group_is_added(budget: int, most: int, groups: list[GroupState]) -> None:
    of_host = host(budget, [offer("a", 4, next_bytes=2, most=most), offer("b")], *groups)
    assert decide(fleet(of_host)) == []


def test_queues_come_after_all_that_wait() -> None:
    several, group = offer("a", 4, next_bytes=2, most=2), busy("g1", "a", waiting=9, ready_s=1.0)
    assert decide(fleet(host(6, [several, offer("b", 3)], group), b=0.0)) == [], "b cannot start yet"
    assert decide(fleet(host(6, [several, offer("b", 2)], group), b=0.0)) == [Load("h1", "b", "demand")]


def test_a_queue_on_one_host_starts_a_group_on_another() -> None:
    one = offer("a", 4, next_bytes=2)
    hosts = [host(4, [one], busy("g1", "a", waiting=1)), host(4, [one], name="h2")]
    assert decide(fleet(*hosts)) == [Load("h2", "a", "queue")]
    hosts[1] = host(4, [one], starting("g2", "a"), name="h2")
    assert decide(fleet(*hosts)) == []
