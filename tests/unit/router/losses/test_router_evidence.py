"""What heartbeats say of their leaders, and how long a silence may be: on calm and on busy machines."""

import math

import pytest

from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.groups.loss import Loss
from services.router.domain.self_echo_monitor import SelfEchoMonitor
from shared.messages import GroupDown, Heartbeat, Load, ModelCard, State, Vitals

BEAT_S = 0.025
CALM_S = 3 * BEAT_S + 0.175  # default settings
MOST_S = 16 * CALM_S
POLL_S = 0.005


def beat(
    seq: int,
    name: str = "g0",
    state: State = "ready",
    vitals: Vitals | None = None,
    instance: str = "i1",
) -> Heartbeat:
    return Heartbeat(
        group=name, instance_id=instance, seq=seq, interval_ms=25, state=state,
        model=ModelCard(name="m", context_length=1024), load=Load(max_running=8, max_waiting=8),
        vitals=vitals,
    )  # fmt: skip


def new_fleet(state: State = "ready", vitals: Vitals | None = None) -> Fleet:
    fleet = Fleet(FleetLimits())
    fleet.observe(beat(1, state=state, vitals=vitals), 0.0)
    fleet.observe(beat(1, "g1", instance="i9"), 0.0)
    return fleet


def lost_after(fleet: Fleet, since: float, delay_s: float = 0.0) -> float:
    """Returns the seconds from `since` until g0 is lost, while g1 beats on."""
    for step in range(1, 4000):
        now = since + step * POLL_S
        if step % 5 == 0:
            fleet.observe(beat(1000 + round(now * 1000), "g1", instance="i9"), now)
        if fleet.expire(now, delay_s=delay_s) == ["g0"]:
            return now - since
    raise AssertionError("never lost")


@pytest.mark.parametrize(
    ("leader", "reason"), [("ended", "disconnected"), ("frozen", "silent"), ("hung", "silent")]
)
def test_a_leader_that_is_said_not_to_run_is_lost_at_once(leader: str, reason: str) -> None:
    fleet = new_fleet()
    assert fleet.observe(beat(2, vitals=Vitals(leader=leader)), 0.01) == "lost"
    assert not fleet.is_ready("g0", 0.01)
    assert fleet.take_losses() == [Loss("g0", "i1", reason, cause=leader)]  # type: ignore[arg-type]
    assert fleet.observe(beat(3, vitals=Vitals(leader=leader)), 0.03) == "ignored"  # it is said twice
    assert fleet.expire(10.0, 10.0) == ["g1"]
    assert [loss.group for loss in fleet.take_losses()] == ["g1"]


@pytest.mark.parametrize("leader", ["running", "", "a word of the future"])
def test_every_other_word_means_that_it_runs(leader: str) -> None:
    fleet = new_fleet()
    assert fleet.observe(beat(2, vitals=Vitals(leader=leader)), 0.01) == "same"
    assert fleet.is_ready("g0", 0.01)


def test_a_leader_that_goes_on_is_back_with_its_next_heartbeat() -> None:
    fleet = new_fleet()
    fleet.observe(beat(5, vitals=Vitals(leader="frozen")), 0.01)
    assert fleet.observe(beat(6, vitals=Vitals()), 2.0) == "returned"
    assert fleet.is_ready("g0", 2.0)


def test_heartbeats_on_their_way_bring_no_leader_back_that_has_ended() -> None:
    fleet = new_fleet()
    fleet.observe(beat(5, vitals=Vitals(leader="ended")), 0.01)
    for seq in (6, 4):  # the leader's own ones came by another connection
        assert fleet.observe(beat(seq), 0.02) == "ignored"
    assert not fleet.is_ready("g0", 0.02)
    assert fleet.observe(beat(0), 0.03) == "restarted"  # a container's next leader has the same name


def test_the_end_of_another_instance_is_none_of_this_one() -> None:
    fleet = new_fleet()
    fleet.observe(beat(0, instance="i2"), 0.1)
    fleet.take_losses()
    fleet.observe(beat(9, vitals=Vitals(leader="ended")), 0.11)
    assert fleet.is_ready("g0", 0.11)
    assert fleet.take_losses() == []


def test_the_end_of_a_leader_that_was_leaving_is_no_failure() -> None:
    fleet = new_fleet("draining")
    fleet.observe(beat(2, state="draining", vitals=Vitals(leader="ended")), 0.01)
    (loss,) = fleet.take_losses()
    assert loss.leaving


def test_what_another_router_was_told_by_the_leaders_process_is_believed() -> None:
    down = GroupDown(group="g0", instance_id="i1", reason="silent", router_id="r2")
    fleet = new_fleet()
    fleet.on_group_down(down, 0.01)
    assert fleet.is_ready("g0", 0.01)  # this router hears it
    fleet.on_group_down(
        GroupDown(group="g0", instance_id="i1", reason="silent", router_id="r2", cause="frozen"), 0.01
    )
    assert not fleet.is_ready("g0", 0.01)
    (loss,) = fleet.take_losses()
    assert (loss.own, loss.cause) == (False, "frozen")


@pytest.mark.parametrize("vitals", [None, Vitals(), Vitals(pressure=0.3, late_ms=4)])
def test_on_a_calm_machine_silence_is_found_as_fast_as_without_evidence(vitals: Vitals | None) -> None:
    fleet = new_fleet()
    for seq in range(2, 100):
        fleet.observe(beat(seq, vitals=vitals), seq * BEAT_S)
    assert CALM_S < lost_after(fleet, 99 * BEAT_S) < CALM_S + 2 * BEAT_S


@pytest.mark.parametrize(("pressure", "limit_s"), [(0.7, 0.75), (0.94, 0.75), (0.96, 4.0), (1.0, 4.0)])
def test_on_a_busy_machine_silence_has_longer_until_it_is_calm_again(pressure: float, limit_s: float) -> None:
    fleet = new_fleet()
    fleet.observe(beat(2, vitals=Vitals(pressure=pressure)), BEAT_S)
    fleet.observe(beat(3, vitals=Vitals(pressure=0.7)), 2 * BEAT_S)  # less does not shorten it at once
    assert limit_s < lost_after(fleet, 2 * BEAT_S) < limit_s + 2 * BEAT_S
    fleet, seq = new_fleet(vitals=Vitals(pressure=pressure)), 1
    while seq * BEAT_S < 10.0:
        seq += 1
        fleet.observe(beat(seq, vitals=Vitals(pressure=0.1)), seq * BEAT_S)
    assert lost_after(fleet, seq * BEAT_S) < CALM_S + 2 * BEAT_S


def test_a_witness_that_stammers_holds_no_loss_up_beyond_the_bound() -> None:
    """A heartbeat of g1 comes every 0.2 s, and g0's never again: most of its silence is that of both."""
    fleet = new_fleet(vitals=Vitals(pressure=1.0))
    now = 0.0
    while fleet.expire(now) != ["g0"]:
        now += 0.2
        fleet.observe(beat(1000 + round(now * 1000), "g1", instance="i9"), now)
        assert now < MOST_S + CALM_S + 0.4
    assert now > 2.0


def test_a_group_whose_heartbeats_were_late_has_three_times_the_longest_gap_for_a_minute() -> None:
    for gap_s, expected_s in ((0.2, 0.6), (0.5, 1.5), (5.0, MOST_S)):
        fleet = new_fleet()
        for step in range(1, round(gap_s / BEAT_S)):
            fleet.observe(beat(1 + step, "g1", instance="i9"), step * BEAT_S)
        fleet.observe(beat(2), gap_s)
        assert expected_s - POLL_S < lost_after(fleet, gap_s) < expected_s + 2 * BEAT_S
    seq, now, forgotten_s = 2, gap_s, 120.0
    while now < gap_s + forgotten_s:
        seq, now = seq + 1, now + BEAT_S
        fleet.observe(beat(seq), now)
    assert lost_after(fleet, now) == pytest.approx(3 * gap_s * math.exp(-forgotten_s / 60), rel=0.1)


@pytest.mark.parametrize("state", ["starting", "recovering", "failed"])
def test_a_group_that_takes_no_requests_has_the_longest_time(state: State) -> None:
    fleet = new_fleet(state)
    assert MOST_S < lost_after(fleet, 0.0) < MOST_S + 2 * BEAT_S


def test_a_group_that_loads_is_lost_at_once_when_its_leader_ends() -> None:
    fleet = new_fleet("starting")
    fleet.observe(beat(2, state="starting", vitals=Vitals(leader="ended")), 0.01)
    assert [loss.cause for loss in fleet.take_losses()] == ["ended"]
    fleet = new_fleet("starting")
    fleet.on_disconnect("i1", 0.01)
    assert [loss.reason for loss in fleet.take_losses()] == ["disconnected"]


def test_a_slow_broker_gives_every_group_as_much_longer() -> None:
    assert CALM_S + 0.4 < lost_after(new_fleet(), 0.0, delay_s=0.4) < CALM_S + 0.4 + 2 * BEAT_S
    assert lost_after(new_fleet(), 0.0, delay_s=60.0) < MOST_S + 2 * BEAT_S


def test_the_brokers_delay_is_what_echoes_took_beyond_the_routers_own() -> None:
    monitor = SelfEchoMonitor(0.025, 1.5, 0.0)
    now = 0.0
    for _ in range(10):
        now += 0.025
        monitor.on_tick(now, True, -1.0)
        monitor.on_echo(now, monitor.late_total_s, now + 0.002)
    assert monitor.delay_s(now) == 0.0
    sent_at, late_s = now, monitor.late_total_s
    now += 1.0  # this router stands still, and reads the echo after its next tick
    monitor.on_tick(now, True, -1.0)
    monitor.on_echo(sent_at, late_s, now)
    assert monitor.delay_s(now) == pytest.approx(0.0, abs=1e-9)
    sent_at, late_s = now, monitor.late_total_s
    now += 1.0  # once more, and it reads the echo before its tick
    monitor.on_echo(sent_at, late_s, now)
    assert monitor.delay_s(now) == pytest.approx(0.0, abs=1e-9)
    monitor.on_tick(now, True, -1.0)
    sent_at, late_s = now, monitor.late_total_s
    for _ in range(16):  # its ticks are on time, and the echo is late: that is the broker
        now += 0.025
        monitor.on_tick(now, True, -1.0)
    monitor.on_echo(sent_at, late_s, now)
    assert monitor.delay_s(now) == pytest.approx(0.375)
    assert 0 < monitor.delay_s(now + 59) < 0.01
    assert monitor.delay_s(now + 61) == 0.0
