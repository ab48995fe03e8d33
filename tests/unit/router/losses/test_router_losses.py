"""Losses of groups, found by silence, by other routers or by the broker, and the return of groups."""

import json

import pytest
from msgspec.structs import replace

from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.groups.loss import MAX_NEWS_BYTES, Loss, read_disconnect
from shared.messages import DownReason, GroupDown, Heartbeat, Load, ModelCard, State


def beat(seq: int = 1, *, instance: str = "i1", state: State = "ready", name: str = "g0") -> Heartbeat:
    return Heartbeat(
        group=name,
        instance_id=instance,
        seq=seq,
        interval_ms=25,
        state=state,
        model=ModelCard(name="m", context_length=1024),
        load=Load(max_running=8, max_waiting=8),
    )


def new_fleet(state: State = "ready") -> Fleet:
    fleet = Fleet(FleetLimits(router_heartbeat_slack_s=0.1, hold_s=0.1, patience=2.5))
    fleet.observe(beat(1, state=state), 0.0)
    return fleet


def down(reason: DownReason, instance: str = "i1") -> GroupDown:
    return GroupDown(group="g0", instance_id=instance, reason=reason, router_id="other")


def test_heartbeats_under_way_do_not_bring_a_dead_leader_back() -> None:
    fleet = new_fleet()
    fleet.on_disconnect("i1", 0.010)
    fleet.on_disconnect("i1", 0.011)  # the second connection of the instance
    assert fleet.take_losses() == [Loss("g0", "i1", "disconnected")]
    assert fleet.observe(beat(2), 0.012) == "ignored"
    assert fleet.observe(beat(3), 0.110) == "ignored"
    assert not fleet.is_ready("g0", 0.110)
    assert fleet.expire(5.0) == []
    assert fleet.take_losses() == []


def test_a_leader_that_only_lost_a_connection_is_back_after_the_hold() -> None:
    fleet = new_fleet()
    fleet.on_disconnect("i1", 0.0)
    for seq in range(2, 6):
        assert fleet.observe(beat(seq), seq * 0.025 - 0.03) == "ignored"
    assert fleet.observe(beat(6), 0.115) == "returned"
    assert fleet.is_ready("g0", 0.115)
    fleet.on_disconnect("i1", 0.2)
    assert [loss.reason for loss in fleet.take_losses()] == ["disconnected", "disconnected"]


def test_a_second_connection_that_breaks_later_holds_again() -> None:
    fleet = new_fleet()
    fleet.mark_lost("g0", "no_responders", 0.0)
    fleet.on_disconnect("i1", 0.01)
    assert fleet.observe(beat(2), 0.02) == "ignored"
    assert [loss.reason for loss in fleet.take_losses()] == ["no_responders"]


def test_a_new_instance_is_welcome_at_once() -> None:
    fleet = new_fleet()
    fleet.on_disconnect("i1", 0.0)
    assert fleet.observe(beat(0, instance="i2"), 0.05) == "restarted"
    assert fleet.is_ready("g0", 0.05)
    assert len(fleet.take_losses()) == 1
    fleet.on_disconnect("i1", 0.06)  # the old instance's connection, reported late
    assert fleet.is_ready("g0", 0.06)
    assert fleet.take_losses() == []


def test_an_instance_that_was_replaced_before_its_time_was_over_is_reported() -> None:
    fleet = new_fleet()
    fleet.observe(beat(0, instance="i2"), 0.05)
    assert fleet.take_losses() == [Loss("g0", "i1", "silent")]


@pytest.mark.parametrize("state", ["draining", "stopped"])
def test_who_said_goodbye_leaves_without_a_failure(state: State) -> None:
    fleet = new_fleet(state)
    assert not fleet.mark_lost("g0", "no_responders", 0.0)
    fleet.on_group_down(down("no_responders"), 0.0)
    assert fleet.take_losses() == []  # it takes no work, but may finish what it has
    for number in range(5):
        now = 0.2 * number
        fleet.observe(beat(2 + number, state=state), now)
        fleet.on_disconnect("i1", now)
    losses = fleet.take_losses()
    assert {(loss.leaving, loss.tripped, loss.own) for loss in losses} == {(True, False, True)}
    assert fleet.groups()[0].breaker.state(1.0) == "closed"


def test_news_of_another_router_is_not_told_again() -> None:
    for reason in ("disconnected", "no_responders"):
        fleet = new_fleet()
        fleet.on_group_down(down(reason), 0.01)
        assert not fleet.is_ready("g0", 0.01)
        assert [loss.own for loss in fleet.take_losses()] == [False]
        fleet.on_group_down(down(reason), 0.02)
        fleet.on_group_down(down(reason, "i9"), 0.02)
        fleet.on_group_down(GroupDown(group="g9", instance_id="i1", reason=reason), 0.02)
        assert fleet.take_losses() == []


def test_of_silence_a_router_that_hears_the_group_judges_for_itself() -> None:
    fleet = new_fleet()
    fleet.on_group_down(down("silent"), 0.08)
    assert fleet.is_ready("g0", 0.08)
    fleet.on_group_down(down("silent"), 0.10)  # also silent here, for over half the limit
    assert not fleet.is_ready("g0", 0.10)
    assert fleet.observe(beat(2), 0.11) == "returned"


def test_while_groups_come_back_to_the_broker_no_group_is_given_up_for_not_listening() -> None:
    fleet = new_fleet()
    fleet.unsettle(1.5)
    for seq in range(2, 20):
        assert fleet.mark_lost("g0", "no_responders", 0.05 * seq)  # not used until it beats
        assert not fleet.is_ready("g0", 0.05 * seq)
        assert fleet.observe(beat(seq), 0.05 * seq) == "returned"
    assert fleet.take_losses() == []
    assert fleet.is_ready("g0", 1.0)
    assert fleet.mark_lost("g0", "no_responders", 1.6)
    assert len(fleet.take_losses()) == 1


def test_what_this_router_missed_itself_is_excused_until_the_next_heartbeat() -> None:
    fleet = new_fleet()
    fleet.excuse(1.0)
    assert fleet.expire(1.1) == []
    fleet.observe(beat(2), 1.1)
    assert fleet.expire(1.46, proven_at=1.4) == []
    assert fleet.expire(1.46) == ["g0"]


def test_a_group_that_beats_irregularly_has_more_time_within_a_bound() -> None:
    fleet, now = new_fleet(), 0.0
    for seq in range(2, 200):
        now += 0.025
        fleet.observe(beat(seq), now)
        fleet.observe(beat(seq, name="g1"), now)
    assert 0.17 < lost_after(fleet, now) < 0.21
    for gap_s, after_s in ((0.14, 0.425), (5.0, 0.45)):
        fleet = new_fleet()
        others_beat(fleet, 0.0, gap_s)
        fleet.observe(beat(2), gap_s)
        assert lost_after(fleet, gap_s) == after_s
    fleet = new_fleet()
    others_beat(fleet, 0.0, 0.14)
    fleet.excuse(0.12)  # this router did not read in that time
    fleet.observe(beat(2), 0.14)
    assert 0.17 < lost_after(fleet, 0.14) < 0.21


def test_a_witness_that_stammers_holds_a_loss_up_for_so_long_and_no_longer() -> None:
    fleet = new_fleet()
    for seq in range(2, 41):
        fleet.observe(beat(seq), seq * 0.025)
        fleet.observe(beat(seq, name="g1"), seq * 0.025)
    now, found = 1.0, 0.0
    while not found and now < 3.0:  # g1 is heard every 0.16 s, g0 never again
        now += 0.16
        fleet.observe(beat(round(now * 1000), name="g1"), now)
        found = now - 1.0 if fleet.expire(now) == ["g0"] else 0.0
    assert 0.35 < found < 0.35 + 0.17  # twice the limit of 0.175


def test_a_group_that_beats_rarely_excuses_no_other() -> None:
    fleet = new_fleet()
    for seq in range(2, 40):
        fleet.observe(beat(seq), seq * 0.025)
    rare = replace(beat(1, name="g1"), interval_ms=1000)
    fleet.observe(rare, 1.0)
    fleet.observe(replace(rare, seq=2), 2.0)  # after a second in which no group was heard
    assert fleet.expire(2.01) == ["g0"]


def others_beat(fleet: Fleet, since: float, until: float) -> None:
    """Sends a heartbeat of g1 every 25 ms, from `since` to `until` (seconds)."""
    for seq in range(1, round((until - since) / 0.025) + 1):
        fleet.observe(beat(round(since * 1000) + seq, name="g1"), since + seq * 0.025)


def lost_after(fleet: Fleet, since: float) -> float:
    """Returns the seconds from `since` until g0 is lost, while g1 beats every 25 ms."""
    for seq in range(1, 100):
        now = since + seq * 0.025
        fleet.observe(beat(100_000 + seq, name="g1"), now)
        if fleet.expire(now) == ["g0"]:
            return round(now - since, 3)
    raise AssertionError("never lost")


def test_while_no_group_is_heard_no_group_is_silent() -> None:
    fleet = new_fleet()
    for seq in range(2, 41):
        fleet.observe(beat(seq), seq * 0.025)
        fleet.observe(beat(seq, name="g1"), seq * 0.025)
    assert fleet.expire(1.3) == []  # both are silent: the fault may be here or in the broker
    fleet.observe(beat(41), 1.3)  # g0's heartbeat is read first
    assert fleet.expire(1.3) == []
    assert fleet.expire(1.325) == []
    others_beat(fleet, 1.325, 1.525)
    assert fleet.expire(1.525) == ["g0"]
    fleet.observe(beat(42), 1.55)
    fleet.observe(beat(3000, name="g1"), 1.55)
    assert fleet.expire(1.55 + 0.34) == []
    assert fleet.expire(1.55 + 0.9) == ["g0", "g1"]  # both groups are gone


def test_a_draining_group_gets_no_work_from_its_heartbeat_on() -> None:
    fleet = new_fleet()
    assert fleet.is_ready("g0", 0.0)
    for seq, state in enumerate(("draining", "recovering", "starting", "failed"), start=2):
        assert fleet.observe(beat(seq, state=state), 0.01) == "changed"  # type: ignore[arg-type]
        assert fleet.view("m", 0.01).away == {"g0": state}
        assert not fleet.view("m", 0.01).ready


def test_a_group_to_avoid_is_taken_when_there_is_no_other() -> None:
    fleet = new_fleet()
    assert [group.name for group in fleet.view("m", 0.0, avoid="g0").ready] == ["g0"]
    fleet.observe(beat(1, name="g1"), 0.0)
    view = fleet.view("m", 0.0, avoid="g0")
    assert [group.name for group in view.ready] == ["g1"]
    assert view.away == {"g0": "avoided"}
    assert len(fleet.view("m", 0.0, avoid="g9").ready) == 2


def news(name: object, reason: object = "Client Closed", user: object = "worker") -> bytes:
    """Returns the broker's message about a closed connection, with fields that the router does not use."""
    return json.dumps(
        {
            "type": "io.nats.server.advisory.v1.client_disconnect",
            "server": {"name": "n", "id": "N1", "ver": "2.10.0"},
            "client": {"acc": "RYZ", "id": 7, "user": user, "name": name, "stop": "2026-01-01T00:00:00Z"},
            "sent": {"msgs": 1},
            "reason": reason,
        }
    ).encode()


def test_the_broker_names_leaders_by_their_main_connection() -> None:
    assert read_disconnect(news("worker/host-1-ab")) == "host-1-ab"
    assert read_disconnect(b'{"client": {"name": "worker/i"}}') == "i"
    for other in ("router/host-1", "", "worker/", "xworker/i", "gateway/worker/i", "worker/i/heartbeats"):
        assert read_disconnect(news(other)) is None


def test_who_only_calls_itself_a_leader_is_not_believed() -> None:
    assert read_disconnect(news("worker/i", user="outside")) is None
    assert read_disconnect(news("worker/i", user="")) is None
    other = news("worker/i", user="stranger").replace(b'"RYZ"', b'"$G"')  # a broker without our accounts
    assert read_disconnect(other) == "i"


@pytest.mark.parametrize(
    "reason", ["Server Shutdown", "Stale Connection", "Slow Consumer (Pending Bytes)", "?"]
)
def test_what_the_broker_closed_itself_says_nothing_of_the_leader(reason: str) -> None:
    assert read_disconnect(news("worker/i", reason)) is None
    assert read_disconnect(news("worker/i", "Read Error")) == "i"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"{}", b"\xff", b"[" * 20_000, b'{"client":' * 9_000, news(7),
     news("worker/i", 7), b" " * MAX_NEWS_BYTES + news("worker/i")],
)  # fmt: skip
def test_broken_news_are_an_error_and_no_more(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_disconnect(data)
