"""Random histories of demand, failures, deaths, wishes and budgets in virtual time: what must always hold.

Each step of `Simulation` asserts that no host is over its budget, that no stop is forbidden, and that no
model waits longer than its bound; `make chaos` runs 10,000 histories. Each death, failure and wish makes the
bound longer, so a second test has none of them.
"""

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from shared.messages.models import Wish
from tests.kits.chaos.scale import scaled
from tests.kits.router.models.simulated_host import SimulatedHost, SimulatedModel
from tests.kits.router.models.simulation import LONGEST_REQUEST_S, STEP_S, Simulation

pytestmark = pytest.mark.timeout(scaled(300, 3600))
NAMES = ("a", "b", "c", "d", "e")
Event = tuple[float, str, int, int]  # after so many seconds: what, for which model or group, a number
WISHES: tuple[Wish, ...] = ("load", "sleep", "unload", "load")
UNUSED_S = 11.0  # after its load a group waits so long for a first request
EVENTS = (
    *("request", "request", "burst", "burst", "steady", "steady", "calm"),
    *("kill", "kill leader", "fail", "wish", "scale", "budget"),
)


@st.composite
def fleets(draw: st.DrawFn) -> Simulation:
    """Some hosts and models; every model is offered by at least one host."""
    models = [draw(models_named(name)) for name in NAMES[: draw(st.integers(2, len(NAMES)))]]
    hosts = [
        SimulatedHost(f"h{number}", draw(st.integers(12, 26)), [])
        for number in range(draw(st.sampled_from([1, 1, 2, 3])))
    ]
    for model in models:
        for host in draw(st.lists(st.sampled_from(hosts), min_size=1, unique_by=id)):
            host.models.append(model)
    return Simulation(hosts, models)


@st.composite
def models_named(draw: st.DrawFn, name: str) -> SimulatedModel:
    first = draw(st.integers(4, 12))
    further = draw(st.integers(1, first))
    kv = draw(st.integers(0, further - 1)) if draw(st.booleans()) else further - 1
    return SimulatedModel(
        name,
        first,
        further,
        draw(st.sampled_from([0.5, 1.0, 3.0, 6.0])),
        priority=draw(st.sampled_from([0, 0, 0, 1, 5])),
        pinned=draw(st.sampled_from([False] * 9 + [True])),
        least=draw(st.sampled_from([0] * 8 + [1, 2])),
        most=draw(st.integers(2, 3)),
        sleep_s=draw(st.sampled_from([0.0, 0.0, 2.0, 5.0])),
        slots=draw(st.integers(1, 2)),
        kv=kv,
        kv_least=draw(st.sampled_from([min(kv, 1), min(kv, 1), (kv + 1) // 2, kv])),
    )


EVENT = st.tuples(
    st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 10.0]),
    st.sampled_from(EVENTS),
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 7),
)

REQUESTS = st.tuples(
    st.just(3.0), st.sampled_from(["request", "burst"]), st.integers(0, 4), st.integers(0, 7)
)


def happen(run: Simulation, event: Event) -> None:
    _, what, which, number = event
    model = sorted(run.models)[which % len(run.models)]
    match what:
        case "request":
            run.request(model, 0.5 + number / 2)
        case "burst":
            for _ in range(1 + number):
                run.request(model, LONGEST_REQUEST_S / 2)
        case "steady":
            run.steady.add(model)
        case "calm":
            run.steady.discard(model)
        case "kill":
            run.kill(number)
        case "kill leader":
            run.kill_leader(number)
        case "budget":
            run.change_budget(which, 2 * (number - 3))
        case "fail":
            run.fail_next(model, 0.5 + number)
        case "wish":
            run.wish(model, WISHES[number % len(WISHES)])
        case "scale":
            run.scale(model, 1 + number % 3)


def pass_time(run: Simulation, seconds: float) -> None:
    for _ in range(round(seconds / STEP_S)):
        run.step()


def come_to_rest(run: Simulation) -> None:
    """Demand ends; after some time nothing is loaded or stopped any more."""
    run.steady.clear()
    quiet_s, needed_s = 0.0, UNUSED_S + max(model.load_s for model in run.models.values())
    for _ in range(round(2 * run.rest_s() / STEP_S)):
        quiet_s = 0.0 if run.step() or run.requests() else quiet_s + STEP_S
        if quiet_s >= needed_s:
            return
    raise AssertionError(f"it does not come to rest: {run.actions[-10:]}")


@settings(max_examples=scaled(40, 10_000))
@given(fleets(), st.lists(EVENT, min_size=5, max_size=40))
def test_a_fleet_in_any_history(run: Simulation, events: list[Event]) -> None:
    for event in events:
        pass_time(run, event[0])
        happen(run, event)
    come_to_rest(run)
    target(run.longest_wait)
    for host in run.hosts.values():
        for model in host.models:
            if model.sleep_s and host.wishes.get(model.name) != "unload":
                assert len(host.running(model.name)) <= model.kept, "idle groups end"


@settings(max_examples=scaled(8, 1_000))
@given(fleets(), st.sets(st.sampled_from(NAMES), min_size=2), st.lists(REQUESTS, max_size=20))
def test_no_model_starves(run: Simulation, steady: set[str], events: list[Event]) -> None:
    """Some models always have requests; others get one now and then."""
    run.steady = steady.intersection(run.models)
    for event in events:
        pass_time(run, event[0])
        happen(run, event)
    pass_time(run, (1 + len(run.models)) * run.turn_s())
    target(run.longest_wait)
    come_to_rest(run)
