"""Two leaders with one group name: one of them gets the requests, and the other is reported."""

from cli.groups.query import group_rows
from cli.status.query import StatusReport
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.rivals import LIVES_S, REMEMBERED, SETTLE_S, TELL_EVERY_S, Rivals
from shared.messages import GroupDown, ServiceStatus, State
from tests.kits.router.fleet import beat, new_fleet


def alternate(fleet: Fleet, seconds: float, *, start: float = 0.0) -> list[str]:
    """Sends heartbeats of two instances, each every 100 ms.

    Returns:
        What the fleet reported for each heartbeat of `first`.
    """
    changes: list[str] = []
    for number in range(round(seconds * 10)):
        now = start + number / 10
        fleet.observe(beat(number + 2, instance="second"), now)
        changes.append(fleet.observe(beat(number + 2, instance="first"), now + 0.05))
    return changes


def test_requests_are_meant_for_exactly_one_of_two_and_the_other_is_reported_once() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, instance="first"), 0.0)
    changes = alternate(fleet, 30.0)
    assert fleet.instance_of("g0") == "second"
    assert changes.count("rival") == 1
    assert set(changes) == {"ignored", "rival"}
    assert fleet.rivals.of("g0", 30.0) == "first"
    assert alternate(fleet, 60.0, start=30.0).count("rival") == 1
    assert [loss.instance_id for loss in fleet.take_losses()] == ["first"]


def test_the_last_heartbeats_of_a_leader_that_was_replaced_are_no_conflict() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, instance="first"), 0.0)
    fleet.observe(beat(0, instance="second"), 1.0)
    assert fleet.observe(beat(2, instance="first"), 1.0 + SETTLE_S * 0.9) == "ignored"
    assert fleet.observe(beat(3, instance="first", state="draining"), 9.0) == "ignored"
    assert fleet.rivals.of("g0", 9.0) == ""


def test_a_rival_that_fell_silent_is_no_conflict_any_more() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, instance="first"), 0.0)
    alternate(fleet, 3.0)
    assert fleet.rivals.of("g0", 3.0) == "first"
    assert fleet.rivals.of("g0", 3.1 + LIVES_S) == ""


def test_when_the_instance_that_has_the_group_is_lost_the_other_one_gets_it() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, instance="first"), 0.0)
    alternate(fleet, 3.0)
    fleet.on_group_down(GroupDown(group="g0", instance_id="second", reason="disconnected"), 3.0)
    assert fleet.observe(beat(99, instance="first"), 3.2) == "restarted"
    assert fleet.is_ready("g0", 3.2)
    assert fleet.instance_of("g0") == "first"
    assert fleet.observe(beat(99, instance="second"), 3.3) == "ignored"


def test_what_is_remembered_of_instances_is_bounded() -> None:
    rivals = Rivals()
    for number in range(100):
        rivals.replaced("g0", f"i{number}", float(number))
    assert [rivals.is_former("g0", f"i{number}") for number in (0, 99 - REMEMBERED, 99)] == [
        False,
        False,
        True,
    ]
    assert rivals.heard("g0", "i99", 200.0)
    assert not rivals.heard("g0", "i99", 200.0 + TELL_EVERY_S / 2)
    assert rivals.heard("g0", "i99", 200.0 + TELL_EVERY_S)
    rivals.forget("g0")
    assert not rivals.is_former("g0", "i99")
    assert rivals.of("g0", 260.0) == ""


def leader(instance_id: str, group: str, state: State = "ready") -> ServiceStatus:
    detail = {"group": group, "state": state}
    return ServiceStatus(
        service="worker",
        instance_id=instance_id,
        state=state,
        version="1",
        uptime_s=1,
        pid=1,
        detail=detail,
    )


def test_the_lists_of_groups_show_who_shares_a_name() -> None:
    report = StatusReport("nats://x", None)
    report.services = [
        leader("a", "g0"), leader("b", "g0"), leader("c", "g1"), leader("d", "g1", "draining"),
        leader("e", "g2"),
    ]  # fmt: skip
    troubles = {row.instance_id: row.troubles for row in group_rows(report)}
    assert troubles == {
        "a": ["b has this name too"], "b": ["a has this name too"], "c": [], "d": [], "e": [],
    }  # fmt: skip
    assert [group["rivals"] for group in report.groups()] == [["b"], ["a"], [], [], []]
