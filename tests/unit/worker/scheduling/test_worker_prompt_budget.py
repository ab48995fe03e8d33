"""The share of prompts in a step: costs, the target of running decodes, fairness between prompts."""

import random
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.prompt_budget.prefill_shares import share_budget, shared_context
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import (
    COLD_CHUNK,
    LEAST_SHARE,
    MIN_CHUNK,
    PrefillThrottle,
)
from services.worker.domain.scheduling.prompt_budget.step_costs import StepCostModel, StepWork
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.rank_protocol.plan import StepPlan, StepResult
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import compute, make

DECODES = StepWork(decodes=16, context=16 * 500)


def machine_s(work: StepWork) -> float:
    """The true seconds of a step: 8.4 ms for 16 decodes, 0.3 ms for a token of a prompt."""
    fixed = 0.002 if work.decodes + work.prompt_tokens else 0.0
    return fixed + 3e-4 * work.decodes + 2e-7 * work.context + 3e-4 * work.prompt_tokens + 4e-8 * work.pairs


def random_work(rng: random.Random) -> StepWork:
    decodes, prompt = rng.randrange(1, 33), rng.choice([0, rng.randrange(2, 400)])
    return StepWork(decodes, decodes * rng.randrange(2000), prompt, prompt * rng.randrange(4000))


def test_costs_are_found_from_noisy_steps_and_followed() -> None:
    rng, costs = random.Random(1), StepCostModel()
    for speed in (1.0, 3.0, 0.5):
        for _ in range(400):
            work = random_work(rng)
            seconds = machine_s(work) * speed * rng.lognormvariate(0, 0.05)
            held_up = rng.random() < 0.01
            costs.observe_step(work, seconds * (10 if held_up else 1))
        errors = [
            abs(costs.seconds(work) / (speed * machine_s(work)) - 1)
            for work in (random_work(rng) for _ in range(200))
        ]
        assert np.median(errors) < 0.06
        assert np.quantile(errors, 0.9) < 0.4


def test_costs_of_equal_steps_stay_those_that_were_known() -> None:
    rng, costs = random.Random(2), StepCostModel()
    for _ in range(200):
        work = random_work(rng)
        costs.observe_step(work, machine_s(work))
    for _ in range(2000):
        costs.observe_step(DECODES, machine_s(DECODES))  # tells nothing of prompts
    prompt = StepWork(16, 8000, 200, 200 * 1000.0)
    assert costs.seconds(prompt) == pytest.approx(machine_s(prompt), rel=0.1)


def test_tokens_within_a_time_take_that_time() -> None:
    rng, costs = random.Random(3), StepCostModel()
    for _ in range(300):
        work = random_work(rng)
        costs.observe_step(work, machine_s(work))
    for context in (0, 4000, 30_000):
        count = costs.prompt_tokens_within(0.05, context)
        work = StepWork(16, 8000, count, count * (context + count / 2))
        assert machine_s(work) - machine_s(DECODES) == pytest.approx(0.05, rel=0.1)
    assert costs.prompt_tokens_within(0.0, 10) == 0


def test_a_step_without_time_is_ignored() -> None:
    costs = StepCostModel()
    costs.observe_step(StepWork(prompt_tokens=100), 0.0)
    assert not costs.knows_prompts
    assert costs.seconds(DECODES) == 0


def test_the_first_chunk_beside_decodes_is_small() -> None:
    throttle = PrefillThrottle(0.05)
    assert throttle.prompt_budget(400, DECODES) == 400  # an engine that takes no time has no limit
    throttle.observe_step(DECODES, 0.01)
    assert throttle.prompt_budget(400, DECODES) == COLD_CHUNK
    assert throttle.prompt_budget(400, StepWork()) == 400


def test_without_a_target_there_is_no_limit() -> None:
    throttle = PrefillThrottle(0.0)
    throttle.observe_step(StepWork(16, 0, 64, 2048), 3.0)
    assert throttle.prompt_budget(512, DECODES) == 512
    assert not throttle.measures(True)


@pytest.mark.parametrize("decode_s", [0.09, 0.4])
def test_prompts_get_on_where_the_target_leaves_nothing(decode_s: float) -> None:
    throttle = PrefillThrottle(0.1)
    for _ in range(20):
        throttle.observe_step(DECODES, decode_s)
        throttle.observe_step(StepWork(prompt_tokens=100, pairs=5000), 0.1)
    tokens = throttle.prompt_budget(512, DECODES)
    assert tokens >= LEAST_SHARE * decode_s / 0.001 * 0.7
    slow = PrefillThrottle(0.001)
    for _ in range(20):
        slow.observe_step(DECODES, 0.01)
        slow.observe_step(StepWork(prompt_tokens=512, pairs=2e5), 500.0)
    assert slow.prompt_budget(512, DECODES) == MIN_CHUNK


def _mixed_load(
    target_s: float, seconds: float, machine: Callable[[StepWork], float]
) -> tuple[list[float], list[float]]:
    """Runs 16 decodes and a prompt of 1,500 tokens every second, as the engine loop does.

    Returns:
        The longest time between two tokens in each second, and the seconds to the first token of each prompt.
    """
    now, arrivals, longest = 0.0, 0, dict[int, float]()
    scheduler = Scheduler(BlockManager(8192), scheduler_limits(512, 64, 512, target_s), clock=lambda: now)
    came, first = dict[str, float](), dict[str, float]()
    for index in range(16):
        scheduler.add(make(f"decode{index}", 8, 5000, arrival=index))
    steps = deque[StepPlan]()
    while now < seconds:
        while arrivals < now:
            name = f"prompt{arrivals}"
            came[name] = arrivals
            scheduler.add(make(name, 1500, 2, arrival=100 + arrivals))
            arrivals += 1
        while len(steps) < 2 and (not steps or sum(p.num_tokens for p in steps[-1].chunks) <= 64):
            steps.append(scheduler.plan())
        plan = steps.popleft()
        chunks = [(piece.start + piece.num_tokens, piece.num_tokens) for piece in plan.chunks]
        prompts = [(end, count) for end, count in chunks if count > 1]
        work = StepWork(
            len(chunks) - len(prompts),
            sum(end for end, count in chunks if count == 1),
            sum(count for _, count in prompts),
            sum(count * (end - count / 2) for end, count in prompts),
        )
        step_s = machine(work)
        now += step_s
        result = compute(plan)
        timed = StepResult(step_id=result.step_id, sampled=result.sampled, compute_s=step_s)
        for advance in scheduler.apply(timed, step_s):
            first.setdefault(advance.sequence.request_id, now)
        if now > 2:  # then the first prompts are measured
            longest[int(now)] = max(longest.get(int(now), 0.0), step_s)
    return list(longest.values())[:-1], [first[name] - at for name, at in came.items() if name in first]


def test_a_mixed_load_keeps_the_target_and_prompts_come_in_time() -> None:
    rng = random.Random(5)

    def machine(work: StepWork) -> float:
        return machine_s(work) * rng.lognormvariate(0, 0.02)

    longest, first = _mixed_load(0.06, 60, machine)
    free, unlimited = _mixed_load(0.0, 60, machine)
    assert np.mean(np.array(longest) <= 0.06) >= 0.95
    assert max(longest) < 0.066
    assert min(free) > 0.1  # what the target prevents
    assert np.median(first) < 1.3 * np.median(unlimited)


def test_prompts_of_all_lengths_get_on_beside_each_other() -> None:
    scheduler = Scheduler(BlockManager(8192), scheduler_limits(128, 64, 512))
    for index in range(3):
        scheduler.add(make(f"long{index}", 6000, 1, arrival=index))
    ended = dict[str, int]()
    for step in range(250):
        if step % 3 == 0:
            scheduler.add(make(f"short{step}", 40, 1, arrival=10 + step))
        if not scheduler.has_work:
            continue
        for advance in scheduler.apply(compute(scheduler.plan())):
            ended[advance.sequence.request_id] = step
    waits = [ended[name] - int(name.removeprefix("short")) for name in ended if name.startswith("short")]
    assert len(waits) > 60
    assert max(waits) <= 2  # a short prompt has its turn behind long ones
    assert ended["long0"] < ended["long1"] < ended["long2"]  # and those do not starve


def test_cut_steps_are_counted() -> None:
    scheduler = Scheduler(BlockManager(8192), scheduler_limits(512, 64, 512, 0.05))
    scheduler.add(make("a", 40, 50))
    scheduler.add(make("b", 600, 1, arrival=1))
    for _ in range(3):
        plan = scheduler.plan()
        result = compute(plan)
        seconds = 0.001 * sum(piece.num_tokens for piece in plan.chunks)
        scheduler.apply(StepResult(step_id=result.step_id, sampled=result.sampled, compute_s=seconds))
    cuts, budget = scheduler.throttle.take_cuts()
    assert cuts >= 1
    assert MIN_CHUNK <= budget <= 60
    assert scheduler.throttle.take_cuts() == (0, budget)


def test_the_context_of_a_step_is_that_of_the_prompts_that_share_it() -> None:
    first, long, short = (
        make(name, 1000, 2, arrival=at) for at, name in enumerate(("first", "long", "short"))
    )
    for one, planned in ((first, 100), (long, 300), (short, 900)):
        one.planned = planned
    for prefilling in ([first], [first, long], [first, long, short]):
        shares = share_budget(prefilling, 64)
        average = sum(one.planned * count for one, count in shares) / sum(count for _, count in shares)
        assert shared_context(prefilling) == average
    assert shared_context([]) == 0
