"""Background sequences stand still while the prompt of another request is computed, and go on after it."""

import random

import msgspec

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.background import QUIET_S
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.rank_protocol.plan import StepPlan
from shared.messages.base import BACKGROUND_PRIORITY
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import compute, make, step


def build(blocks: int = 64, budget: int = 32, running: int = 16) -> Scheduler:
    return Scheduler(BlockManager(blocks), scheduler_limits(budget, running, 64))


def test_they_stand_still_while_another_prompt_is_computed() -> None:
    scheduler = build()
    for number in range(3):
        scheduler.add(make(f"b{number}", 4, 50, arrival=number, priority=BACKGROUND_PRIORITY))
    step(scheduler)
    assert len(scheduler.plan().chunks) == 3
    scheduler = build()
    lines = [make(f"b{n}", 4, 50, arrival=n, priority=BACKGROUND_PRIORITY) for n in range(3)]
    for line in lines:
        scheduler.add(line)
    step(scheduler)
    scheduler.add(make("chat", 70, 3, arrival=9))
    for tokens in (32, 32, 6):
        plan = scheduler.plan()
        assert [(len(part.token_ids), part.sample) for part in plan.chunks] == [(tokens, tokens == 6)]
        scheduler.apply(compute(plan))
    assert len(scheduler.plan().chunks) == 4  # all decode


def test_all_end_under_random_arrivals() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        scheduler = build(blocks=24, budget=16, running=6)
        left = [
            make(
                f"r{n}",
                rng.randint(1, 60),
                rng.randint(1, 20),
                arrival=n,
                priority=rng.choice([0, BACKGROUND_PRIORITY, BACKGROUND_PRIORITY]),
            )
            for n in range(30)
        ]
        ended = 0
        for _ in range(3000):
            if left and rng.random() < 0.3:
                scheduler.add(left.pop())
            ended += sum(advance.finish_reason is not None for advance in step(scheduler))
            scheduler.check_invariants()
            if not left and not scheduler.has_work:
                break
        assert ended == 30, seed


def timed(scheduler: Scheduler, plan: StepPlan) -> None:
    """Books a step that takes 1 ms and 0.1 ms for each of its tokens."""
    tokens = sum(part.num_tokens for part in plan.chunks)
    scheduler.apply(msgspec.structs.replace(compute(plan), compute_s=0.001 + 0.0001 * tokens))


def test_their_steps_are_short_while_others_come() -> None:
    now = [100.0]
    limits = scheduler_limits(64, 32, 64)
    scheduler = Scheduler(BlockManager(256), limits, clock=lambda: now[0])
    for number in range(20):
        scheduler.add(make(f"b{number}", 4, 10_000, arrival=number, priority=BACKGROUND_PRIORITY))
    for _ in range(50):
        timed(scheduler, scheduler.plan())
    assert len(scheduler.plan().chunks) == 20  # nothing else came for long
    scheduler = Scheduler(BlockManager(256), limits, clock=lambda: now[0])
    for number in range(20):
        scheduler.add(make(f"b{number}", 4, 10_000, arrival=number, priority=BACKGROUND_PRIORITY))
    scheduler.add(make("chat", 40, 2, arrival=30))
    most = 0
    for number in range(300):
        now[0] += 0.002
        plan = scheduler.plan()
        most = max(most, len(plan.chunks)) if number > 100 else 0
        timed(scheduler, plan)
    assert 2 <= most <= 5  # of 1.1 ms for one sequence, a quarter is 2.75 more of them
    assert scheduler.background_alone
    now[0] += QUIET_S
    assert len(scheduler.plan().chunks) == 20
