"""The lead of a group over its share of work: estimates, measured tokens, and the log of decisions."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from benchmarks.routing.routing import route
from benchmarks.routing.routing_time import decision_times
from benchmarks.stack_plans import RoutingPlan
from services.router.decision_log import DecisionLog
from services.router.domain.decision import Assignment, FleetView, GroupView, RequestFacts
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies.costs import Costs, Move
from services.router.incoming import read
from services.router.metrics import RouterMetrics
from services.worker.leader.fleet.group_description import TokenRate
from shared import subjects
from shared.bus import Message
from shared.codec import encode
from shared.messages import GenerateRequest, Heartbeat, KVRates, Load, ModelCard, State
from shared.telemetry.spans.facts import SpanSink
from tests.kits.spans import KeptSpans

TRACE = "0af7651916cd43dd8448eb211c80319c"


def beat(name: str, seq: int = 1, rate: float = 1000.0, **more: Any) -> Heartbeat:
    state: State = more.pop("state", "ready")
    load = Load(running=1, max_running=8, max_waiting=8, **more)
    kv = KVRates(recompute_tokens_per_s=rate, fetch_tokens_per_s=9000.0, fetch_s=0.01, store=True)
    card = ModelCard(name="m", context_length=64)
    return Heartbeat(
        group=name, instance_id="i", seq=seq, interval_ms=100, state=state, model=card, load=load, kv=kv
    )


def two_groups(**more: Any) -> Fleet:
    fleet = Fleet(FleetLimits(half_life_s=60.0))
    for name in ("g0", "g1"):
        fleet.observe(beat(name, **more), 0.0)
    return fleet


def leads(fleet: Fleet, now: float) -> list[float]:
    return [round(group.lead_s, 3) for group in fleet.view("m", now).ready]


def test_a_group_is_ahead_by_what_it_was_given_beyond_its_share() -> None:
    fleet = two_groups()
    fleet.count_sent("g0", 600, 0.0, 200)
    fleet.count_sent("g1", 200, 0.0)
    assert leads(fleet, 0.0) == [0.3, -0.3]
    assert leads(fleet, 2.0) == [0.15, -0.15]


def test_what_a_group_computed_takes_the_place_of_what_was_guessed() -> None:
    """A request is estimated at 1,000 tokens and has 600, which are computed in the first 0.1 s."""
    fleet, rates = two_groups(), TokenRate()
    fleet.count_sent("g0", 1000, 0.0)
    assert leads(fleet, 0.0) == [0.5, -0.5]
    rates.update(0, 0.0)
    for number in range(1, 201):
        now = number / 10
        fleet.observe(beat("g0", number + 1, tokens_per_s=rates.update(600, now)), now)
        fleet.observe(beat("g1", number + 1), now)
        if number == 20:
            assert 0.25 < leads(fleet, now)[0] < 0.5
    left = 0.3 * 0.5 ** (20 / 60)
    assert leads(fleet, 20.0) == [pytest.approx(left, rel=0.05), pytest.approx(-left, rel=0.05)]


def test_a_group_that_measured_nothing_is_neither_ahead_nor_behind() -> None:
    fleet = two_groups(rate=0.0)
    fleet.count_sent("g0", 600, 0.0)
    assert leads(fleet, 0.0) == [0.0, 0.0]


@pytest.mark.parametrize("away", ["draining", "lost"])
def test_a_group_that_comes_back_need_not_catch_up(away: str) -> None:
    fleet = two_groups()
    if away == "lost":
        fleet.mark_lost("g1", "silent", 0.0)
    else:
        fleet.observe(beat("g1", 2, state="draining"), 0.0)
    fleet.count_sent("g0", 5000, 0.0)
    assert leads(fleet, 0.0) == [0.0]
    fleet.observe(beat("g1", 3), 0.0)
    assert leads(fleet, 0.0) == [0.0, 0.0]


def test_computed_tokens_are_counted_from_heartbeats_and_not_over_a_silence() -> None:
    fleet = two_groups()
    fleet.observe(beat("g0", 2, tokens_per_s=1000.0), 0.1)
    fleet.observe(beat("g1", 2, tokens_per_s=1000.0), 20.0)  # late: counts for three intervals
    computed = fleet.work.computed.counts(20.0)
    assert round(computed["g0"]) == round(100 * 0.5 ** (20 / 60))
    assert 298 <= computed["g1"] <= 300


def test_prompts_wait_by_the_measured_rate_also_when_little_was_done_lately() -> None:
    fleet = two_groups(tokens_per_s=1.0, queued_tokens=500)
    assert fleet.view("m", 0.0).ready[0].wait_s == 0.5


def test_a_group_that_measured_no_prompts_is_not_slow_because_it_had_little_to_do() -> None:
    fleet = two_groups(rate=0.0, tokens_per_s=1.0, queued_tokens=250)
    view = fleet.view("m", 0.0).ready[0]
    assert view.wait_s == 0.5
    assert Costs().total_s(RequestFacts("m", "", 500), view, None) == 1.5


def account(spans: SpanSink | None = None) -> tuple[DecisionLog, CollectorRegistry]:
    registry = CollectorRegistry()
    return DecisionLog(RouterMetrics(registry, "hybrid"), Costs(), spans), registry


def assigned(account: DecisionLog, chosen: Assignment, facts: RequestFacts) -> Move:
    view = FleetView("m", (GroupView("g0", wait_s=2.0), GroupView("g1", recompute_tokens_per_s=1000.0)))
    request = GenerateRequest(request_id="r-1", model="m", prompt="x")
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    incoming = read(Message(subjects.generate("m"), encode(request), "_INBOX.a", headers), 0.0)
    return account.record_assignment(incoming, facts, view, chosen, 1e-5)


def test_a_session_that_moves_is_counted_and_says_what_its_group_computes_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    accounts, registry = account()
    facts = RequestFacts("m", "s", 100, "g0", 300)
    assert assigned(accounts, Assignment("g1", "spill_wait", "g0"), facts) == Move(0.3, 300)
    labels = {"policy": "hybrid", "reason": "spill_wait", "group": "g1"}
    assert registry.get_sample_value("ryz_router_decisions_total", labels) == 1
    assert registry.get_sample_value("ryz_router_move_seconds_sum") == 0.3
    line = capsys.readouterr().out
    assert "cost_s=0.4" in line
    assert "stay_cost_s=2.2" in line
    assert assigned(accounts, Assignment("g0", "preferred", "g0"), facts) == Move()
    assert registry.get_sample_value("ryz_router_move_seconds_count") == 1
    assert not capsys.readouterr().out


def test_a_decision_is_in_the_callers_trace() -> None:
    spans = KeptSpans()
    accounts, _ = account(spans)
    assigned(accounts, Assignment("g0", "preferred_busy", "g0"), RequestFacts("m", "s", 100))
    (span,) = spans.made
    assert (span.name, span.trace_id, span.parent_id) == ("choice of a group", TRACE, "b7ad6b7169203331")
    assert span.attributes["ryz.route.reason"] == "preferred_busy"
    assert span.attributes["ryz.route.cost_s"] == 2.2
    assert span.end_ns - span.begin_ns == 10_000


def test_in_virtual_time_hybrid_is_even_and_keeps_its_hits() -> None:
    """64 sessions on four groups; one session has a quarter of all turns."""
    plan = RoutingPlan(duration=60.0, load=0.8)
    hybrid, sticky, turns = (route(plan, name) for name in ("hybrid", "sticky", "round_robin"))
    assert hybrid["imbalance_busy"] < 0.05
    assert hybrid["imbalance_tokens"] < 0.05
    assert sticky["imbalance_tokens"] > 0.3
    assert turns["hit_rate"] < hybrid["hit_rate"] - 0.05
    assert hybrid["hit_rate"] > 0.9
    assert hybrid == route(plan, "hybrid")


def test_without_the_store_hybrid_moves_less_and_nothing_is_fetched() -> None:
    figures = route(RoutingPlan(duration=30.0, load=0.8, store=False), "hybrid")
    assert figures["fetched_rate"] == 0
    assert figures["hit_rate"] > 0.85  # caches are empty at first


def test_decisions_are_timed_by_the_size_of_the_fleet() -> None:
    (row,) = decision_times([4], decisions=200)
    assert row["groups"] == 4
    assert 0 < row["choose_p50_us"] <= row["decide_p99_us"]
