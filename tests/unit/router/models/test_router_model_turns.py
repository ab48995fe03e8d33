"""Models that are always wanted and do not fit together take turns, in virtual time."""

from services.router.domain.models.control_state import Load, Stop
from tests.kits.router.models.simulated_host import EXIT_S, SimulatedHost, SimulatedModel
from tests.kits.router.models.simulation import LONGEST_REQUEST_S, STEP_S, Simulation

LOAD_S = 1.0
QUANTUM_S = 5.0
DRAIN_S = 2 * LONGEST_REQUEST_S + EXIT_S  # a request that runs, and one that waits behind it
TURN_S = LOAD_S + QUANTUM_S + DRAIN_S + 2 * STEP_S


def run_for(seconds: float, *models: SimulatedModel, budgets: tuple[int, ...] = (8,)) -> Simulation:
    hosts = [SimulatedHost(f"h{number}", budget, list(models)) for number, budget in enumerate(budgets)]
    run = Simulation(hosts, models)
    run.steady = {model.name for model in models}
    for _ in range(round(seconds / STEP_S)):
        run.step()
    return run


def loads(run: Simulation) -> str:
    return "".join(action.model for _, action in run.actions if isinstance(action, Load))


def test_each_model_has_its_turn() -> None:
    models = [SimulatedModel(name, 6, 2, LOAD_S, slots=1) for name in "abc"]
    run = run_for(40 * TURN_S, *models)
    order = loads(run)
    assert set(order) == {"a", "b", "c"}
    assert order.startswith(order[:3] * (len(order) // 3)), order
    assert len(order) >= 39
    assert run.longest_wait_s <= 3 * TURN_S


def test_a_high_priority_starves_nobody() -> None:
    models = [
        SimulatedModel(name, 6, 2, LOAD_S, priority=number, slots=1) for number, name in enumerate("abc")
    ]
    run = run_for(40 * TURN_S, *models)
    assert min(loads(run).count(name) for name in "abc") >= 39 // 3
    assert run.longest_wait_s <= 3 * TURN_S


def test_a_model_that_needs_the_whole_host_has_its_turn_among_small_ones() -> None:
    models = [SimulatedModel(name, 2, 2, LOAD_S, slots=1) for name in "abcde"]
    large = SimulatedModel("z", 8, 2, LOAD_S, slots=1)
    run = run_for(40 * TURN_S, *models, large)
    assert loads(run).count("z") >= 8
    assert run.longest_wait_s <= 3 * TURN_S + 4 * LOAD_S


def test_models_that_fit_together_stay() -> None:
    models = [SimulatedModel(name, 4, 2, LOAD_S, slots=1) for name in "abc"]
    run = run_for(100.0, *models, budgets=(8, 4))
    assert sorted(loads(run)) == ["a", "b", "c"]
    assert not [action for _, action in run.actions if isinstance(action, Stop)]


def test_a_second_group_gives_way_to_another_model() -> None:
    models = [SimulatedModel("a", 4, 4, LOAD_S, slots=1, most=2), SimulatedModel("b", 4, 4, LOAD_S, slots=1)]
    run = Simulation([SimulatedHost("h", 8, models)], models)
    for _ in range(200):
        if run.requests() < 8:
            run.request("a", LONGEST_REQUEST_S)
        run.step()
    assert loads(run) == "aa"
    run.request("b", 1.0)
    for _ in range(round(TURN_S / STEP_S) + 10):
        run.step()
    assert loads(run) == "aab"
    stops = [action for _, action in run.actions if isinstance(action, Stop)]
    assert [(stop.reason, stop.wanted_by) for stop in stops] == [("rotated", "b")]
    assert len(run.groups_of("a")) == 1
