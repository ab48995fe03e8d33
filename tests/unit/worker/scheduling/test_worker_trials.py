"""Requests on trial are computed alone, in turns with the others, until they pass the trial."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.rank_protocol.engine_sampling import EngineSampling
from tests.kits.engine.hash_engine import EOS, HashEngine, alone
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Run

Made = tuple[int, bool, int]  # prompt tokens, whether it is on trial, choices


def make_run(blocks: int = 64, budget: int = 32) -> Run:
    return Run(
        Scheduler(BlockManager(blocks), scheduler_limits(budget, 16, 64)),
        HashEngine(blocks).compute,
        run_ahead=0,
    )


def add(run: Run, number: int, made: Made) -> None:
    length, trial, choices = made
    for choice in range(choices):
        sequence = Sequence(
            request_id=f"r{number}", choice=choice, tokens=prompt(number, length), prompt_len=length,
            max_tokens=12, sampling=EngineSampling(n=choices), eos_ids=frozenset({EOS}), arrival=number,
            trial_tokens=TRIAL_TOKENS if trial else 0,
        )  # fmt: skip
        run.scheduler.add(sequence)


def prompt(number: int, length: int) -> list[int]:
    return [(number * 31 + index * 7) % 49 + 1 for index in range(length)]


def in_step(run: Run) -> set[str]:
    """The requests of the newest step."""
    return run.scheduler.requests_in([run.plans[-1].step_id])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.booleans(), st.integers(1, 2)), min_size=1, max_size=8))
def test_a_step_has_one_request_on_trial_or_none_and_answers_are_the_same(made: list[Made]) -> None:
    run = make_run()
    for number, one in enumerate(made):
        add(run, number, one)
    sequences = list(run.scheduler.waiting)
    while run.scheduler.has_work or run.results:
        on_trial = {
            one.request_id
            for one in sequences
            if one.trial_tokens and one.sampling.n == 1 and one.phase is not SequencePhase.ENDED
        }
        if not run.submit():
            continue
        computed = in_step(run)
        assert not computed & on_trial or len(computed) == 1
        run.book()
    for number, (length, _, choices) in enumerate(made):
        if choices == 1:
            assert run.outputs[f"r{number}"] == alone(prompt(number, length), 12, 0)
    assert not run.scheduler.trials.sequences


def test_others_go_on_alternately_while_one_is_on_trial() -> None:
    run = make_run()
    for number, trial in enumerate((False, True, False, True)):
        add(run, number, (5, trial, 1))
    steps = []
    for _ in range(9):
        assert run.submit()
        steps.append(sorted(in_step(run)))
        run.book()
    assert steps[0] == ["r0", "r2"]
    assert steps[1:9:2] == [["r1"]] * TRIAL_TOKENS
    assert all(step == ["r0", "r2"] for step in steps[0:8:2])
    assert steps[8] == ["r0", "r1", "r2"]


def test_what_came_through_runs_with_the_others() -> None:
    run = make_run()
    add(run, 0, (5, True, 1))
    add(run, 1, (5, False, 1))
    together = False
    for _ in range(20):
        if run.scheduler.has_work and run.submit():
            together |= in_step(run) == {"r0", "r1"}
            run.book()
    assert together


@pytest.mark.parametrize("blocks", [6, 8])
def test_short_of_blocks_all_end(blocks: int) -> None:
    run = make_run(blocks=blocks)
    for number in range(6):
        add(run, number, (30, number % 2 == 0, 1))
    run.finish()
    assert len(run.outputs) == 6
