"""What prompts and forced runs of one party cost the tokens of another one, and of its own sequences."""

from collections.abc import Callable
from collections.abc import Sequence as Many

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.fairness.light_prompts import SEEN_S
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import PROBE
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.rank_protocol.plan import StepPlan, StepResult
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import compute, make

FIXED_S, TOKEN_S = 0.008, 0.001  # of a step, and of each of its tokens
TARGET_S = 0.1
DECODE_S = FIXED_S + TOKEN_S
STEADY = 20  # steps after which the costs are known
JUST_OVER = 1.1  # the estimate is not exact, and chunks are whole tokens


class Fixed:
    """A grammar that allows token 1, and forces a run of it after the first token, or a later one.

    Args:
        length: Of the run.
        after: Tokens before it.
    """

    def __init__(self, length: int, after: int = 1) -> None:
        self._length, self._after, self._accepted = length, after, 0

    @property
    def ended(self) -> bool:
        return False

    def accept(self, token_ids: Many[int]) -> None:
        self._accepted += len(token_ids)

    def mask(self) -> bytes:
        return b"\x02"

    def forced(self) -> list[int]:
        return [1] * self._length if self._accepted == self._after else []


class Machine:
    """Computes the plans of a scheduler, in a time of its own."""

    def __init__(self, target_s: float = TARGET_S, budget: int = 512) -> None:
        self.now = 0.0
        limits = scheduler_limits(budget, 64, 512, target_s)
        self.scheduler = Scheduler(BlockManager(8192), limits, clock=lambda: self.now)
        self.arrivals = 0

    def add(
        self,
        party: str,
        prompt: int,
        output: int,
        constraint: Fixed | None = None,
        *,
        resumed: bool = False,
    ) -> Sequence:
        self.arrivals += 1
        sequence = make(f"{party}{self.arrivals}", prompt, output)
        sequence.enqueued_as(self.arrivals, first=resumed)
        sequence.tenant = sequence.party = party
        sequence.constraint = constraint
        self.scheduler.add(sequence)
        return sequence

    def step(self, stall_s: float = 0.0) -> tuple[StepPlan, float]:
        """Computes the next step, which is held up so long; returns its plan and its seconds."""
        plan = self.scheduler.plan()
        tokens = sum(piece.num_tokens for piece in plan.chunks)
        step_s = FIXED_S + TOKEN_S * tokens + stall_s
        self.now += step_s
        self.scheduler.take_masks()
        result = compute(plan)
        timed = StepResult(step_id=result.step_id, sampled=result.sampled, compute_s=step_s)
        self.scheduler.apply(timed, step_s)
        return plan, step_s

    def seconds_while(self, condition: Callable[[], bool]) -> list[float]:
        """The seconds of the steps while a condition holds."""
        taken = []
        while condition():
            taken.append(self.step()[1])
        return taken

    def warm_up(self, party: str) -> None:
        """Lets the scheduler learn what steps cost."""
        self.add(party, 20, 40)
        for _ in range(STEADY):
            self.step()
        self.add(party, 300, 4)
        self.seconds_while(lambda: self.scheduler.has_work)


def test_prompts_of_another_party_make_tokens_at_most_twice_as_slow() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    other = machine.add("other", 4, 60)
    machine.step()
    for _ in range(4):
        machine.add("crowd", 400, 4)
    seconds = machine.seconds_while(lambda: other.num_output < 60)
    assert max(seconds) <= 2 * DECODE_S * JUST_OVER
    assert max(seconds) > 1.5 * DECODE_S  # and the prompts get on


def test_runs_that_grammars_force_for_another_party_make_tokens_at_most_twice_as_slow() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    other = machine.add("other", 4, 60)
    machine.step()
    runs = [machine.add("crowd", 2, 300, Fixed(250)) for _ in range(2)]
    seconds = machine.seconds_while(lambda: other.num_output < 60)
    assert max(seconds) <= 2 * DECODE_S * JUST_OVER + TOKEN_S  # a row more that decodes
    assert all(len(run.tokens) > 250 for run in runs)  # the caller has them before they are computed
    machine.seconds_while(lambda: machine.scheduler.has_work)
    assert [run.num_output for run in runs] == [300, 300]


def test_runs_keep_the_target_beside_decodes_of_their_own_party() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    decode = machine.add("crowd", 4, 30)
    machine.step()
    run = machine.add("crowd", 2, 300, Fixed(250))
    seconds = machine.seconds_while(lambda: decode.num_output < 30)
    assert max(seconds) <= TARGET_S
    machine.seconds_while(lambda: machine.scheduler.has_work)
    assert run.num_output == 300


def test_a_run_is_part_of_an_answer_and_waits_for_no_prompts_of_newcomers() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    machine.add("crowd", 4, 100)
    run = machine.add("other", 2, 100, Fixed(40, after=50))
    machine.seconds_while(lambda: run.num_output < 50)
    for number in range(40):  # each has more credit than one that has got so much
        machine.add(f"new{number}", 400, 1)
    without = 0
    while run.phase is not SequencePhase.ENDED:
        seq_id = run.seq_id
        plan, _ = machine.step()
        without += all(piece.seq_id != seq_id for piece in plan.chunks)
    assert len(machine.scheduler.waiting) > 20
    assert without <= 1  # one of prompts alone, see `light_prompts.py`


def test_runs_leave_half_of_the_room_to_prompts() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    runs = [machine.add("other", 2, 900, Fixed(800)) for _ in range(8)]
    machine.step()
    prompt = machine.add("crowd", 400, 1)
    machine.seconds_while(lambda: prompt.num_output < 1)
    assert all(run.remaining > 1 for run in runs)


@pytest.mark.parametrize(("prompt", "left"), [(100, 10), (600, 40)])  # light ones have every second step
def test_answers_that_are_resumed_go_before_the_prompts_of_others(prompt: int, left: int) -> None:
    machine = Machine()
    machine.warm_up("crowd")
    others = [machine.add(f"new{number}", prompt, 1) for number in range(40)]
    machine.step()
    resumed = [machine.add(f"old{number}", 600, 1, resumed=True) for number in range(4)]
    machine.seconds_while(lambda: any(one.num_output < 1 for one in resumed))
    assert sum(one.num_output < 1 for one in others) >= left


def test_light_prompts_of_several_parties_are_done_one_after_another() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    began, ends = machine.now, list[float]()
    prompts = [machine.add(f"new{number}", 200, 1) for number in range(8)]
    while machine.scheduler.has_work:
        done = sum(one.num_output for one in prompts)
        machine.step()
        ends += [machine.now] * (sum(one.num_output for one in prompts) - done)
    waited = [end - began for end in ends]
    assert sum(waited) / len(waited) < 0.7 * waited[-1]
    assert waited[0] < 0.4 * waited[-1]


def test_prompts_beside_decodes_of_their_own_party_have_the_target_alone() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    decode = machine.add("crowd", 4, 30)
    machine.step()
    machine.add("crowd", 400, 4)
    assert max(machine.seconds_while(lambda: decode.num_output < 30)) > 4 * DECODE_S


def test_a_step_without_decodes_is_short_while_another_party_comes_and_goes() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    machine.add("crowd", 500, 1)
    machine.add("crowd", 500, 1)
    assert machine.step()[1] > 4 * TARGET_S  # no other party used the engine
    other = machine.add("other", 4, 2)
    machine.seconds_while(lambda: other.num_output < 2)
    machine.add("crowd", 500, 1)
    assert max(machine.seconds_while(lambda: machine.scheduler.has_work)) <= TARGET_S
    machine.now += SEEN_S
    machine.add("crowd", 500, 1)
    assert machine.step()[1] > 4 * TARGET_S


@pytest.mark.parametrize("engine_s", [0.0, 1.0])
def test_an_engine_that_takes_no_time_or_has_no_target_has_no_limit(engine_s: float) -> None:
    machine = Machine(target_s=0.0)
    if engine_s:
        machine.warm_up("crowd")
    other = machine.add("other", 4, 30)
    machine.step()
    machine.add("crowd", 400, 4)
    plan, _ = machine.step()
    assert sum(piece.num_tokens for piece in plan.chunks) == 401
    assert other.num_output == 2


def test_a_short_prompt_of_another_party_is_computed_beside_long_ones() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    machine.add("crowd", 4, 200)
    machine.step()
    for _ in range(4):
        machine.add("crowd", 400, 4)
    other = machine.add("other", 16, 8)
    seconds = machine.seconds_while(lambda: not other.num_output)
    assert len(seconds) <= 5


def test_prompts_stand_still_for_a_step_if_none_that_only_decodes_shows_what_that_takes() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    other = machine.add("other", 4, 3 * PROBE)
    machine.step()
    for _ in range(2):
        machine.add("crowd", 1000, 4)
    seconds = machine.seconds_while(lambda: other.num_output < 2 * PROBE)
    assert 1 <= sum(one == DECODE_S for one in seconds) <= 3


def test_a_stall_of_the_machine_does_not_make_the_prompts_of_others_longer() -> None:
    machine = Machine()
    machine.warm_up("crowd")
    other = machine.add("other", 4, 200)
    for number in range(40):
        machine.step(stall_s=0.1 if number % 5 == 0 else 0.0)
    machine.add("crowd", 1000, 4)
    assert max(machine.seconds_while(lambda: other.num_output < 100)) <= 2.5 * DECODE_S
