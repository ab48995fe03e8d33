"""The router's estimates of groups between heartbeats, after losses and after restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.router.domain.decision import Assignment, GroupView, RequestFacts
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.groups.group import Group
from services.router.domain.groups.live_view import LiveView, Standings, Wanted
from services.router.domain.policies import Hybrid
from services.router.domain.rendezvous import preferred
from shared.messages import DownReason, GroupDown
from tests.kits.router.fleet import beat, new_fleet


def held(fleet: Fleet, now: float) -> int:
    view = fleet.view("m", now).ready[0]
    return view.running + view.waiting


def test_load_is_the_heartbeat_plus_what_was_sent_since() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, running=8, accepted=8), 0.0)
    for _ in range(3):
        fleet.count_sent("g0", 10, 0.01)
    view = fleet.view("m", 0.02).ready[0]
    assert (view.running, view.waiting, view.capacity) == (8, 3, 16)


def test_a_heartbeat_that_counted_the_requests_does_not_count_them_twice() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, accepted=5), 0.0)
    for _ in range(4):
        fleet.count_sent("g0", 10, 0.05)
    fleet.observe(beat(2, running=3, accepted=8), 0.1)  # one request is still on its way
    assert held(fleet, 0.1) == 4


def test_what_never_arrived_is_forgotten_after_two_heartbeats() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, accepted=1), 0.0)
    fleet.count_sent("g0", 10, 0.05)
    fleet.observe(beat(2, accepted=1), 0.1)
    assert held(fleet, 0.1) == 1
    fleet.observe(beat(3, accepted=1), 0.2)
    assert held(fleet, 0.2) == 0


def test_a_fast_group_is_not_taken_for_full_between_heartbeats() -> None:
    """1,000 requests per second, each done in a millisecond, with a bound of 16."""
    fleet, sent = new_fleet(), 0
    fleet.observe(beat(1), 0.0)
    fullest = 0
    for interval in range(1, 8):
        for step in range(100):
            now = (interval - 1) * 0.1 + step * 0.001
            fleet.count_sent("g0", 1, now)
            sent += 1
            if interval > 3:
                fullest = max(fullest, held(fleet, now))
        fleet.observe(beat(interval + 1, running=1, accepted=sent), interval * 0.1)
    assert fullest < 16


def test_a_group_with_slots_left_is_not_full_before_it_beats_again() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1), 0.0)
    for _ in range(63):
        fleet.count_sent("g0", 1, 0.01)
    assert not fleet.view("m", 0.02).ready[0].full
    fleet.count_sent("g0", 1, 0.01)
    assert fleet.view("m", 0.02).ready[0].full
    fleet.observe(beat(2, running=8, waiting=8, accepted=64), 0.1)  # it held 16 of them and refused the rest
    assert fleet.view("m", 0.1).ready[0].full


def test_a_group_that_finishes_nothing_fills_up() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, running=8, accepted=8), 0.0)
    fleet.observe(beat(2, running=8, accepted=8), 0.1)
    for _ in range(8):
        fleet.count_sent("g0", 1, 0.1)
    assert fleet.view("m", 0.19).ready[0].full


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=30))
def test_the_estimate_never_falls_below_zero_nor_grows_without_bound(
    steps: list[tuple[int, int, bool]],
) -> None:
    fleet, accepted, now = new_fleet(), 0, 0.0
    fleet.observe(beat(1), now)
    for seq, (sends, taken, foreign) in enumerate(steps, start=2):
        for _ in range(sends):
            fleet.count_sent("g0", 7, now)
        accepted += taken + (100 if foreign else 0)  # other routers' requests are counted as well
        now += 0.1
        fleet.observe(beat(seq, running=taken, accepted=accepted), now)
        assert 0 <= held(fleet, now) <= taken + 10


def test_a_wait_is_estimated_from_the_queue_and_the_measured_rate() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, running=8, waiting=4, accepted=12), 0.0)
    fleet.observe(beat(2, running=8, waiting=4, accepted=13), 0.1)  # one done in 0.1 s: ten per second
    assert abs(fleet.view("m", 0.1).ready[0].wait_s - 0.4) < 1e-6


def test_requests_that_are_being_prepared_wait_for_no_slot() -> None:
    """Two of eight places are taken. None ended lately, so the measured rate is almost 0."""
    fleet = new_fleet()
    for seq, free_blocks in ((1, 100), (2, 100), (3, 4)):
        beating = beat(seq, running=2, waiting=2, accepted=4)
        load = replace(beating.load, total_blocks=128, free_blocks=free_blocks)
        fleet.observe(replace(beating, load=load), seq / 10)
        if seq < 3:
            assert fleet.view("m", seq / 10).ready[0].wait_s < 0.2
    fleet.observe(replace(beating, seq=4, load=replace(load, running=1)), 0.4)  # one ended in 0.1 s
    # few blocks are free, so both requests wait, and ten end per second
    assert abs(fleet.view("m", 0.4).ready[0].wait_s - 0.2) < 1e-6


def test_prompts_before_it_count_as_wait() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, running=2, queued_tokens=500, tokens_per_s=1000.0), 0.0)
    fleet.count_sent("g0", 250, 0.0)
    assert abs(fleet.view("m", 0.0).ready[0].wait_s - 0.75) < 1e-6


def test_silence_is_a_loss_and_the_next_heartbeat_ends_it() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1), 0.0)
    assert fleet.expire(0.69) == []  # no other group beats, so the limit is twice as long
    assert fleet.expire(0.71) == ["g0"]
    assert fleet.expire(0.72) == []
    assert fleet.view("m", 0.72).away == {"g0": "lost"}
    assert fleet.observe(beat(2), 0.8) == "returned"
    assert fleet.is_ready("g0", 0.8)


def test_a_group_that_said_goodbye_is_no_failure() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, state="draining"), 0.0)
    assert fleet.expire(1.0) == ["g0"]
    assert fleet.groups()[0].breaker.state(1.0) == "closed"
    assert fleet.groups()[0].lost == "silent"
    assert fleet.groups()[0].standing(1.0) == "lost"  # it had announced its end, and died on the way


@pytest.mark.parametrize("news", ["disconnected", "silent"])
def test_a_group_that_ended_cleanly_is_stopped_and_not_lost(news: DownReason) -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, state="stopped"), 0.0)
    fleet.on_disconnect("i1", 0.1) if news == "disconnected" else fleet.expire(1.0)
    group = fleet.groups()[0]
    assert (group.lost, group.standing(1.0)) == ("stopped", "stopped")
    assert [(loss.reason, loss.leaving) for loss in fleet.take_losses()] == [("stopped", True)]
    assert fleet.view("m", 1.0).away == {"g0": "stopped"}


def test_a_router_that_missed_the_last_heartbeat_learns_of_the_clean_end() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1), 0.0)
    fleet.on_group_down(GroupDown(group="g0", instance_id="i1", reason="stopped", router_id="r2"), 0.1)
    assert fleet.groups()[0].standing(0.1) == "stopped"
    assert [(loss.leaving, loss.tripped, loss.own) for loss in fleet.take_losses()] == [(True, False, False)]


def test_a_new_instance_starts_afresh_and_fences_the_old_one() -> None:
    fleet = new_fleet()
    fleet.observe(beat(50, running=8), 0.0)
    fleet.mark_lost("g0", "no_responders", 0.1)
    assert fleet.observe(beat(1, instance="i2"), 0.2) == "restarted"
    assert held(fleet, 0.2) == 0
    assert fleet.observe(beat(51, running=8), 0.3) == "ignored"
    assert held(fleet, 0.3) == 0


def test_late_heartbeats_are_ignored() -> None:
    fleet = new_fleet()
    fleet.observe(beat(5), 0.0)
    assert fleet.observe(beat(4, state="starting"), 0.1) == "ignored"
    assert fleet.is_ready("g0", 0.1)


def test_repeated_losses_trip_the_breaker_though_heartbeats_come() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1), 0.0)
    fleet.observe(beat(1, name="g1"), 0.0)
    for seq in range(2, 5):
        assert fleet.mark_lost("g0", "no_responders", seq / 10)
        assert not fleet.mark_lost("g0", "no_responders", seq / 10)
        fleet.observe(beat(seq), seq / 10)
    assert fleet.view("m", 0.41).away == {"g0": "tripped"}
    fleet.observe(beat(2, name="g1", state="recovering"), 0.42)
    view = fleet.view("m", 0.43)  # no other group is ready, so it is used
    assert [group.name for group in view.ready] == ["g0"]
    assert view.away == {"g1": "recovering"}
    assert fleet.is_ready("g0", 2.0)


def test_a_silent_model_is_known_for_a_while_and_then_forgotten() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1), 0.0)
    fleet.expire(10.0)
    assert fleet.view("m", 10.0).away == {"g0": "lost"}
    fleet.expire(301.0)
    assert fleet.view("m", 301.0).away == {}
    assert fleet.groups() == []


def test_an_unknown_model_comes_with_the_models_that_are_served() -> None:
    fleet = new_fleet()
    fleet.observe(beat(1, name="g1", model="b"), 0.0)
    fleet.observe(beat(1, name="g0", model="a"), 0.0)
    fleet.observe(beat(1, name="g2", model="c", state="starting"), 0.0)
    assert fleet.view("x", 0.0).models == ("a", "b")
    assert [card.name for card in fleet.models(0.0)] == ["a", "b"]


def test_the_number_of_groups_is_bounded() -> None:
    fleet = Fleet(FleetLimits(max_groups=2))
    assert [fleet.observe(beat(1, name=f"g{i}"), 0.0) for i in range(3)] == ["joined", "joined", "ignored"]


def test_a_restarted_container_with_the_same_instance_id_is_a_new_instance() -> None:
    fleet = new_fleet()
    fleet.observe(beat(90_000, running=8), 0.0)
    assert fleet.observe(beat(0, state="starting"), 0.2) == "restarted"
    assert fleet.observe(beat(1), 0.3) == "changed"
    assert held(fleet, 0.3) == 0
    fleet.observe(beat(90_000, running=8), 0.4)
    assert fleet.expire(2.0) == ["g0"]
    assert fleet.observe(beat(7), 2.1) == "restarted"  # its first heartbeats were lost
    assert fleet.is_ready("g0", 2.1)
    assert held(fleet, 2.1) == 0


def test_heartbeats_that_were_held_up_do_not_show_a_wild_rate() -> None:
    fleet = new_fleet()
    for seq in range(1, 6):  # 80 requests end in each interval of 0.1 s; all are read at once
        fleet.observe(beat(seq, running=8, accepted=80 * seq), seq * 1e-6)
    assert fleet.groups()[0].requests_per_s <= 2 * 800


def test_a_full_group_in_which_nothing_ends_has_a_wait_that_is_bounded() -> None:
    fleet = new_fleet()
    for seq in range(1, 400):  # for 40 s
        fleet.observe(beat(seq, running=8, waiting=16, accepted=24 + 8 * min(seq, 10)), seq * 0.1)
    (group,) = fleet.view("m", 40.0).ready
    assert group.waiting == 16
    assert 10 < group.wait_s <= 16 / 8 * 300


def test_only_groups_that_are_looked_at_are_viewed() -> None:
    fleet, checked_at = new_fleet(), list[str]()
    for number in range(50):
        fleet.observe(beat(1, name=f"g{number}"), 0.0)

    def see(group: Group) -> GroupView:
        checked_at.append(group.name)
        return group.view(0.0)

    groups = {group.name: group for group in fleet.groups()}
    view = LiveView(Wanted("m"), Standings(groups, {}), see, ())
    decision = Hybrid().choose(RequestFacts("m", "s-1", 10, "g7"), view, 0.0)
    assert isinstance(decision, Assignment)
    assert decision.group == "g7"
    assert len(checked_at) == 2  # the session's last group and its preferred group
    assert [group.name for group in view.ready] == sorted(groups)
    assert len(checked_at) == 50
    assert view.find("g7") is next(group for group in view.ready if group.name == "g7")
    assert view.home("s-1") is view.find(preferred("s-1", view.ready).name)
    assert LiveView(Wanted("m"), Standings({}, {}), see, ()).home("s-1") is None
