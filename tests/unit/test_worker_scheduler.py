"""The scheduler's promises, case by case; `test_worker_run_ahead.py` has random loads."""

import pytest

from services.worker.domain.blocks import BlockManager
from services.worker.domain.plan import Sampled, StepPlan, StepResult
from services.worker.domain.scheduler import Advance, Limits, Scheduler
from services.worker.domain.sequence import Phase, Sequence
from shared.messages import Sampling

EOS = 7


def make(
    name: str, prompt: int, output: int, *, arrival: int = 0, priority: int = 0, deadline: float = 1e9
) -> Sequence:
    return Sequence(
        request_id=name,
        choice=0,
        tokens=list(range(100, 100 + prompt)),
        prompt_len=prompt,
        max_tokens=output,
        sampling=Sampling(),
        eos_ids=frozenset([EOS]),
        arrival=arrival,
        priority=priority,
        deadline=deadline,
    )


def build(blocks: int = 64, budget: int = 32, running: int = 16, waiting: int = 64) -> Scheduler:
    return Scheduler(BlockManager(blocks), Limits(budget, running, waiting))


def compute(plan: StepPlan, token_id: int = 1) -> StepResult:
    sampled = [Sampled(seq_id=piece.seq_id, token_id=token_id) for piece in plan.slices if piece.sample]
    return StepResult(step_id=plan.step_id, sampled=sampled)


def step(scheduler: Scheduler, token_id: int = 1) -> list[Advance]:
    plan = scheduler.plan()
    advances = scheduler.apply(compute(plan, token_id)) if plan.slices or plan.release else []
    scheduler.check_invariants()
    return advances


def test_a_prompt_is_computed_in_chunks_then_decoded() -> None:
    scheduler = build(budget=16)
    sequence = make("a", 40, 3)
    scheduler.add(sequence)
    plans = []
    while scheduler.has_work:
        plan = scheduler.plan()
        plans.append(plan)
        scheduler.apply(compute(plan))
    chunks = [(s.start, len(s.token_ids), s.sample) for plan in plans for s in plan.slices]
    assert chunks == [(0, 16, False), (16, 16, False), (32, 8, True), (40, 1, True), (41, 1, True)]
    assert plans[0].admit[0].token_ids == list(range(100, 140))
    assert len(plans[0].slices[0].new_blocks) == 3
    assert plans[-1].release == [1]
    assert sequence.num_output == 3
    assert scheduler.blocks.num_free == 64


def test_end_of_sequence_ends_unless_ignored() -> None:
    scheduler = build()
    heeding, ignoring = make("a", 3, 9), make("b", 3, 2, arrival=1)
    ignoring.sampling = Sampling(ignore_eos=True)
    scheduler.add(heeding)
    scheduler.add(ignoring)
    assert [a.finish_reason for a in step(scheduler, EOS)] == ["stop", None]
    assert [a.finish_reason for a in step(scheduler, EOS)] == ["length"]


def test_a_long_prompt_and_short_ones_both_get_on() -> None:
    scheduler = build(blocks=512, budget=32)
    long = make("long", 2000, 1)
    scheduler.add(long)
    step(scheduler)
    for number in range(3):
        scheduler.add(make(f"short{number}", 8, 1, arrival=1 + number))
    before = long.computed
    names = [a.sequence.request_id for _ in range(2) for a in step(scheduler)]
    assert names == ["short0", "short1", "short2"]
    assert long.computed - before >= 32


def test_priority_goes_before_arrival() -> None:
    scheduler = build(running=1)
    for sequence in (make("low", 4, 1), make("high", 4, 1, arrival=1, priority=5)):
        scheduler.add(sequence)
    assert [a.sequence.request_id for _ in range(3) for a in step(scheduler)] == ["high", "low"]


def test_short_memory_preempts_the_youngest_which_ends_later_all_the_same() -> None:
    scheduler = build(blocks=4, budget=64)
    old, young = make("old", 30, 20), make("young", 30, 20, arrival=1)
    scheduler.add(old)
    scheduler.add(young)
    done = [a.sequence.request_id for _ in range(60) for a in step(scheduler) if a.finish_reason]
    assert done == ["old", "young"]
    assert scheduler.num_preemptions == young.num_preemptions >= 1
    assert young.num_output == 20


def test_cancelled_anywhere_frees_at_once() -> None:
    scheduler = build(running=1)
    running, waiting = make("a", 20, 9), make("b", 4, 9, arrival=1)
    scheduler.add(running)
    scheduler.add(waiting)
    plan = scheduler.plan()
    for sequence in (running, waiting, running):
        scheduler.end(sequence)
    assert scheduler.blocks.num_free == 64
    assert scheduler.apply(compute(plan)) == []
    assert scheduler.plan().release == [1]
    assert not scheduler.has_work
    assert running.phase is waiting.phase is Phase.ENDED


def test_deadlines_hold_for_waiting_and_running() -> None:
    scheduler = build(running=1)
    sequences = [
        make("a", 4, 99, deadline=5.0),
        make("b", 4, 9, arrival=1, deadline=6.0),
        make("c", 4, 9, arrival=2),
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    step(scheduler)
    assert scheduler.expire(4.9) == []
    for late, now in zip(sequences, (5.0, 6.0), strict=False):
        assert scheduler.expire(now) == [late]
        scheduler.end(late)
    assert scheduler.expire(7.0) == []


def test_places_are_bounded() -> None:
    scheduler = build(running=2, waiting=1)
    for number in range(3):
        assert scheduler.has_room(1)
        scheduler.add(make(str(number), 4, 1, arrival=number))
    assert not scheduler.has_room(1)
    step(scheduler)
    assert scheduler.has_room(2)


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="token_budget"):
        Limits(8, 16, 4)
    with pytest.raises(ValueError, match="at least one KV block"):
        BlockManager(0)
    with pytest.raises(ValueError, match="never fit"):
        build(blocks=2).add(make("a", 32, 1))
